"""Operations under way, as torch.distributed wants them: works to wait for, and futures."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.allreduce.communicator import Work
from mlrun.backends.torch.lane import Deferred
from mlrun.backends.torch.staging.base import Staged


class Completer:
    """One thread that completes futures in the order of their operations.

    Callbacks of a future run on the thread that completes it. They must not hold the engine's own threads,
    nor may their order differ between ranks, since they may start collectives.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, complete: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mlrun futures", daemon=True)
            self._thread.start()
        self._queue.put(complete)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while (complete := self._queue.get()) is not None:
            complete()

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._queue.put(None)


class GroupWork(dist.Work):
    """A collective over staged tensors.

    It settles once, on whichever thread asks first (the caller of ``wait``, or the completer for a future):
    waits for the engine and brings results back into the tensors. What can't be brought back on any thread is
    settled where it is asked for, never on the completer.

    ``kept`` is memory that the engine only reads; ``parts`` are works of which this one is the sum.
    """

    def __init__(
        self,
        operations: Sequence[Work],
        written: Sequence[Staged],
        result: list[Tensor],
        completer: Completer,
        *,
        kept: Sequence[Staged] = (),
        parts: Sequence[GroupWork] = (),
    ) -> None:
        super().__init__()
        self._operations = operations
        self._written = written
        self._result = result
        self._completer = completer
        self._kept = kept
        self._parts = parts
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self.settled_at: float | None = None
        """When the result was in place, on ``time.monotonic()``'s clock."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the result is in place; a ``timeout`` of 0 leaves it to the group's own timers.

        Raises:
            CommunicatorError: the operation failed; the message names ranks and the call.
            TimeoutError: still under way after ``timeout``.
        """
        self._settle(timeout.total_seconds() or None)
        for staged in self._all_written():
            staged.order()
        return True

    def ended_by(self, deadline: float) -> bool:
        """Block until the result is in place, or until ``deadline`` on ``time.monotonic()``'s clock: False.

        Raises:
            CommunicatorError: the operation failed.
        """
        try:
            self._settle(max(1e-3, deadline - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def _settle(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError(f"still under way after {timeout_s:g} s")
        try:
            if self.settled_at is None:
                self._settle_once(deadline)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error

    def _settle_once(self, deadline: float | None) -> None:
        def left_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        try:
            for operation in self._operations:
                operation.wait(left_s())
            for staged in self._written:
                staged.publish()
            for part in self._parts:
                part._settle(left_s())
        except TimeoutError:
            raise
        except Exception as error:
            self._error = error
        self.settled_at = time.monotonic()
        for staged in (*self._written, *self._kept):
            staged.end()

    def is_completed(self) -> bool:
        if self.settled_at is not None:
            return True
        return all(o.done() for o in self._operations) and all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def times(self) -> tuple[float, float] | None:
        """(first byte, last byte), where the engine tells."""
        known = [t for t in (operation.times() for operation in self._operations) if t is not None]
        return (min(t[0] for t in known), max(t[1] for t in known)) if known else None

    def ready_at(self) -> float | None:
        """When the device had computed what travels, on ``time.monotonic()``'s clock; None: it was there."""
        known = [o.ready_at for o in self._operations if isinstance(o, Deferred) and o.ready_at is not None]
        return max(known, default=None)

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self._promise(self._result)

    def bucket_future(self) -> torch.futures.Future[Tensor]:
        """The future that a DDP communication hook returns: its value is the bucket."""
        return self._promise(self._result[0])

    def _promise(self, value: Any) -> torch.futures.Future[Any]:
        if self._future is None:
            written = self._all_written()
            self._future = written[0].future() if written else torch.futures.Future()
            nothing_to_do = not self._operations and not self._parts
            here = nothing_to_do or self._completer.is_current()
            if here or not all(staged.anywhere for staged in written):
                self._complete(value)
            else:
                self._completer.submit(lambda: self._complete(value))
        return self._future

    def _all_written(self) -> list[Staged]:
        return [*self._written, *(staged for part in self._parts for staged in part._all_written())]

    def _complete(self, value: Any) -> None:
        assert self._future is not None
        try:
            self._settle(None)
        except Exception as error:
            self._future.set_exception(error)
            return
        written = self._all_written()
        with written[0].completing() if written else contextlib.nullcontext():
            self._future.set_result(value)
