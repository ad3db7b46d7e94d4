"""Who and where this process is, in Horovod's words, and the order of its collectives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import NUMPY, Buffer, Communicator, CommunicatorError, DType, Op, Work
from mlrun.allreduce.own import own

_REDUCES, _OTHER, _JOINED = range(3)
_NO_DATA = 0, DType.UINT8, Op.SUM


class World:
    """All ranks of the run. Every rank makes the same calls in the same order, until it has joined.

    Each call on ``communicator`` is preceded by a word about it to all ranks, which nobody waits for but a
    rank that has joined: from it that rank knows what to add zeros to. Calls and words are groups of their
    own, so the script may use the run's Communicator otherwise too.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.size = communicator.rank, communicator.size
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.cross_rank = int(os.environ.get("GROUP_RANK", "0"))
        self.cross_size = -(-self.size // self.local_size)
        self._data = _all_of(communicator)
        self._words = _all_of(communicator)
        self._lock = threading.Lock()
        self._made = 0
        self.communicator = Announced(self._data, self._announce)
        self.in_float16 = Announced(self._data, self._announce, DType.FLOAT16)
        """The same group; sums of float32 travel in float16."""

    def _announce(self, start: Callable[[], Work], kind: int, call: tuple[int, DType, Op]) -> Work:
        with self._lock:
            self._made += 1
            self._say(kind, call)
            return start()

    def join(self) -> int:
        """Take part in the others' all-reduces with zeros until all ranks have joined; the last one's rank.

        Raises:
            CommunicatorError: another rank made a call that needs data of this one.
        """
        while True:
            words = self._say(_JOINED, _NO_DATA, wait=True)
            at_work = [rank for rank in range(self.size) if words[rank, 0] != _JOINED]
            if not at_work:
                return max(range(self.size), key=lambda rank: (words[rank, 1], rank))
            kind, _, count, dtype, op = words[at_work[0]].tolist()
            if kind == _OTHER:
                reason = f"rank {self.rank} has joined (hvd.join), and rank {at_work[0]} called something "
                reason += "else than an all-reduce"
                self._data.abort(reason)
                raise CommunicatorError(reason)
            zeros = np.zeros(count, dtype=NUMPY[DType(dtype)])
            self._data.all_reduce(Buffer.of(zeros, DType(dtype)), Op(op), name="joined").wait()

    def _say(self, kind: int, reduces: tuple[int, DType, Op], *, wait: bool = False) -> Any:
        own_word = np.array([kind, self._made, *reduces], dtype=np.int64)
        words = np.empty((self.size, own_word.size), dtype=np.int64)
        said = self._words.all_gather(Buffer.of(own_word), Buffer.of(words), name="next call")
        if wait:
            said.wait()
        return words


class Announced(Communicator):
    """``data``, with a word before each collective that Horovod has; ``wire_dtype`` as for ``all_reduce``."""

    def __init__(
        self,
        data: Communicator,
        announce: Callable[[Callable[[], Work], int, tuple[int, DType, Op]], Work],
        wire_dtype: DType | None = None,
    ) -> None:
        self.rank, self.size = data.rank, data.size
        self._data, self._announce, self._wire_dtype = data, announce, wire_dtype

    def all_reduce(
        self, buffer: Buffer, op: Op = Op.SUM, wire_dtype: DType | None = None, name: str = ""
    ) -> Work:
        wire = wire_dtype or (self._wire_dtype if buffer.dtype is DType.FLOAT32 else None)
        call = buffer.count, buffer.dtype, op
        return self._announce(lambda: self._data.all_reduce(buffer, op, wire, name), _REDUCES, call)

    def broadcast(self, buffer: Buffer, root: int, name: str = "") -> Work:
        return self._other(lambda: self._data.broadcast(buffer, root, name))

    def all_gather(self, source: Buffer, target: Buffer, name: str = "") -> Work:
        return self._other(lambda: self._data.all_gather(source, target, name))

    def reduce_scatter(self, source: Buffer, target: Buffer, op: Op = Op.SUM, name: str = "") -> Work:
        return self._other(lambda: self._data.reduce_scatter(source, target, op, name))

    def all_to_all(
        self,
        source: Buffer,
        target: Buffer,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
        name: str = "",
    ) -> Work:
        return self._other(lambda: self._data.all_to_all(source, target, source_counts, target_counts, name))

    def barrier(self, name: str = "") -> Work:
        return self._other(lambda: self._data.barrier(name))

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> Work:
        return self._data.send(buffer, to, tag)

    def recv(self, buffer: Buffer, source: int, tag: int = 0) -> Work:
        return self._data.recv(buffer, source, tag)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        return self._data.split(ranks)

    def abort(self, reason: str) -> None:
        self._data.abort(reason)

    def close(self) -> None:
        """Changes nothing: the run's links are its worker's."""

    def _other(self, start: Callable[[], Work]) -> Work:
        return self._announce(start, _OTHER, _NO_DATA)


def _all_of(communicator: Communicator) -> Communicator:
    group = communicator.split(range(communicator.size))
    assert group is not None
    return group


_world: World | None = None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meet the other ranks. Collective; a second call changes nothing.

    Raises:
        RequestError: this process isn't a worker of a run.
        NotImplementedError: a part of the ranks only.
    """
    global _world  # noqa: PLW0603 - Horovod's API has one world per process
    if comm is not None or process_sets:
        raise NotImplementedError("mlrun's hvd.init takes all ranks of the run: no comm, no process sets")
    if _world is None:
        _world = World(own())


def shutdown() -> None:
    """Forget the world; the run's links end with the worker."""
    global _world  # noqa: PLW0603
    _world = None


def is_initialized() -> bool:
    return _world is not None


def world() -> World:
    """The world that ``init`` met.

    Raises:
        ValueError: ``init`` wasn't called.
    """
    if _world is None:
        raise ValueError("Horovod isn't initialized: call hvd.init() first")
    return _world


def rank() -> int:
    return world().rank


def size() -> int:
    return world().size


def local_rank() -> int:
    return world().local_rank


def local_size() -> int:
    return world().local_size


def cross_rank() -> int:
    return world().cross_rank


def cross_size() -> int:
    return world().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks, as far as this one can tell."""
    return world().size == world().cross_size * world().local_size
