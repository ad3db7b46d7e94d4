"""A Communicator over an engine whose calls block: they run one after another on a thread of their own."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from mlrun.allreduce.communicator import (
    AbortedError,
    Buffer,
    Communicator,
    CommunicatorError,
    DType,
    Op,
    Work,
)
from mlrun.allreduce.side_channel import SideChannel

Call = Callable[[], None]

_CLOSE_TIMEOUT_S = 10.0
_FAREWELL_S = 0.5


def bytes_of(buffer: Buffer) -> Any:
    """The buffer's memory as a writable ctypes array; empty buffers have an address of their own."""
    kind = ctypes.c_char * buffer.nbytes
    return kind.from_address(buffer.address) if buffer.nbytes else kind()


class PendingWork:
    """A Work that another thread ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ended = threading.Event()
        self._error: CommunicatorError | None = None
        self._started: float | None = None
        self._times: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        self._started = time.monotonic()

    def end(self, error: CommunicatorError | None = None) -> None:
        """The first call decides; what the engine says after an abort comes too late."""
        with self._lock:
            if not self._ended.is_set():
                self._error = error
                if self._started is not None and error is None:
                    self._times = self._started, time.monotonic()
                self._ended.set()

    def ended(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"{self.name} is still under way after {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._ended.is_set()

    def times(self) -> tuple[float, float] | None:
        """When the engine's call began and returned; such engines don't tell about bytes."""
        return self._times


class BlockingCommunicator(Communicator):
    """What gloo and MPI share: order, abort, errors. Subclasses make the blocking calls.

    These engines check nothing across ranks: different calls on different ranks hang until the engine's
    timeout, or mix data. Only the ring engine names such a mismatch.
    """

    engine: str

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        channel: SideChannel | None,
        parent: BlockingCommunicator | None,
    ) -> None:
        self.rank, self.size, self.hosts = rank, len(hosts), list(hosts)
        self._parent, self._channel = parent, channel
        self._children: list[BlockingCommunicator] = []
        self._lock = threading.Lock()
        self._outstanding: set[PendingWork] = set()
        self._broken: CommunicatorError | None = None
        self._queue: queue.SimpleQueue[tuple[PendingWork, Call] | None] = queue.SimpleQueue()
        # A daemon: an engine stuck in a call that a dead peer never answers must not keep the process.
        self._thread = threading.Thread(target=self._work_off, name=f"mlrun-{self.engine}", daemon=True)
        self._thread.start()
        if parent is not None:
            parent._children.append(self)
        if channel is not None:
            channel.watch(lambda reason: self._break(self._aborted(reason)), self._break)

    # What an engine does ------------------------------------------------------------------------

    @abstractmethod
    def _all_reduce(self, buffer: Buffer, op: Op) -> None: ...

    @abstractmethod
    def _broadcast(self, buffer: Buffer, root: int) -> None: ...

    @abstractmethod
    def _all_gather(self, source: Buffer, target: Buffer) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, source: Buffer, target: Buffer, op: Op) -> None: ...

    @abstractmethod
    def _all_to_all(
        self, source: Buffer, target: Buffer, source_bytes: list[int], target_bytes: list[int]
    ) -> None: ...

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _start_send(self, buffer: Buffer, to: int, tag: int) -> Call:
        """Start at once, in the caller's order; the answer blocks until it has ended."""

    @abstractmethod
    def _start_recv(self, buffer: Buffer, source: int, tag: int) -> Call: ...

    @abstractmethod
    def _explain(self, error: Exception, name: str) -> CommunicatorError:
        """The engine's exception as one of ours."""

    @abstractmethod
    def _free(self) -> None:
        """Give back what the engine holds, in order; not called after a failure."""

    # Communicator -------------------------------------------------------------------------------

    def all_reduce(
        self, buffer: Buffer, op: Op = Op.SUM, wire_dtype: DType | None = None, name: str = ""
    ) -> Work:
        if wire_dtype is not None:
            raise CommunicatorError(
                f"{self.engine} can't keep sums in float32 over {wire_dtype.name}: use ring"
            )
        return self._enqueue(lambda: self._all_reduce(buffer, op), "all_reduce", name)

    def broadcast(self, buffer: Buffer, root: int, name: str = "") -> Work:
        return self._enqueue(lambda: self._broadcast(buffer, root), "broadcast", name)

    def all_gather(self, source: Buffer, target: Buffer, name: str = "") -> Work:
        _check_parts(source, target, self.size)
        return self._enqueue(lambda: self._all_gather(source, target), "all_gather", name)

    def reduce_scatter(self, source: Buffer, target: Buffer, op: Op = Op.SUM, name: str = "") -> Work:
        _check_parts(target, source, self.size)
        _check_reduction(source.dtype, op)
        return self._enqueue(lambda: self._reduce_scatter(source, target, op), "reduce_scatter", name)

    def all_to_all(
        self,
        source: Buffer,
        target: Buffer,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
        name: str = "",
    ) -> Work:
        parts = [
            _part_bytes(buffer, counts, self.size)
            for buffer, counts in ((source, source_counts), (target, target_counts))
        ]
        return self._enqueue(lambda: self._all_to_all(source, target, *parts), "all_to_all", name)

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> Work:
        return self._point_to_point(lambda: self._start_send(buffer, to, tag), f"send to rank {to}")

    def recv(self, buffer: Buffer, source: int, tag: int = 0) -> Work:
        return self._point_to_point(lambda: self._start_recv(buffer, source, tag), f"recv from rank {source}")

    def barrier(self, name: str = "") -> Work:
        return self._enqueue(self._barrier, "barrier", name)

    def abort(self, reason: str) -> None:
        if self._parent is not None:
            self._parent.abort(reason)
            return
        if self._channel is not None:
            self._channel.abort(reason)
        self._break(self._aborted(reason))

    def close(self) -> None:
        for child in self._children:
            child.close()
        with self._lock:
            healthy, self._broken = self._broken is None, self._broken or CommunicatorError("closed")
        self._queue.put(None)
        if healthy:
            self._thread.join(_CLOSE_TIMEOUT_S)
            if not self._thread.is_alive():
                self._free()
        if self._channel is not None:
            self._channel.close()

    # Order --------------------------------------------------------------------------------------

    def _track(self, name: str) -> PendingWork:
        work = PendingWork(f"{name} on rank {self.rank} ({self.hosts[self.rank]})")
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._outstanding.add(work)
        return work

    def _enqueue(self, call: Call, kind: str, name: str) -> PendingWork:
        work = self._track(f"{kind} {name!r}" if name else kind)
        self._queue.put((work, call))
        Communicator.issued += 1
        return work

    def _point_to_point(self, start: Callable[[], Call], name: str) -> PendingWork:
        work = self._track(name)
        work.begin()
        call = start()
        # One thread each: a receive that waits for its sender must not keep another from ending.
        threading.Thread(
            target=self._run, args=(work, call), name=f"mlrun-{self.engine}", daemon=True
        ).start()
        return work

    def _work_off(self) -> None:
        while (item := self._queue.get()) is not None:
            work, call = item
            if not work.done():
                work.begin()
                self._run(work, call)

    def _run(self, work: PendingWork, call: Call) -> None:
        try:
            call()
        except CommunicatorError as error:
            work.end(error)
        except Exception as error:
            # A moment later a peer's farewell on the side channel tells more than a broken socket.
            if not work.ended(_FAREWELL_S):
                explained = self._explain(error, work.name)
                work.end(explained)
                self._break(explained)
        work.end()
        with self._lock:
            self._outstanding.discard(work)

    def _break(self, error: CommunicatorError) -> None:
        """Fail all that is outstanding and all that comes; the first error stays."""
        with self._lock:
            self._broken = self._broken or error
            outstanding, self._outstanding = self._outstanding, set()
        for work in outstanding:
            work.end(error)
        for child in self._children:
            child._break(error)

    def _aborted(self, reason: str) -> AbortedError:
        return AbortedError(f"rank {self.rank} ({self.hosts[self.rank]}): aborted: {reason}")


def _check_reduction(dtype: DType, op: Op) -> None:
    if dtype is DType.BOOL and op is Op.AVERAGE:
        raise ValueError("booleans have no average")


def _check_parts(part: Buffer, whole: Buffer, size: int) -> None:
    if whole.count != size * part.count or whole.dtype != part.dtype:
        raise ValueError(
            f"{whole.count} {whole.dtype.name} aren't {size} parts of {part.count} {part.dtype.name}"
        )


def _part_bytes(buffer: Buffer, counts: Sequence[int] | None, size: int) -> list[int]:
    if counts is None:
        if buffer.count % size:
            raise ValueError(f"{buffer.count} elements can't be shared equally by {size} ranks")
        counts = [buffer.count // size] * size
    if len(counts) != size or sum(counts) != buffer.count or min(counts) < 0:
        raise ValueError(f"counts {list(counts)} don't share {buffer.count} elements among {size} ranks")
    return [count * buffer.dtype.itemsize for count in counts]
