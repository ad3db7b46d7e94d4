"""Who and where this process is, in Horovod's words, and the order of its collectives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from mlrun.allreduce.communicator import NUMPY, Buffer, Communicator, CommunicatorError, DType, Op
from mlrun.allreduce.own import own

T = TypeVar("T")

_REDUCES, _OTHER, _JOINED = range(3)


class World:
    """All ranks of the run. Every rank makes the same calls in the same order, until it has joined.

    Each call is preceded by a word about it to all ranks, which nobody waits for but a rank that has joined:
    from it that rank knows what to add zeros to. Calls and words are groups of their own, so the script may
    use the run's Communicator otherwise too.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.size = communicator.rank, communicator.size
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.cross_rank = int(os.environ.get("GROUP_RANK", "0"))
        self.cross_size = -(-self.size // self.local_size)
        self.data = _all_of(communicator)
        self._words = _all_of(communicator)
        self._lock = threading.Lock()
        self._made = 0

    def issue(self, start: Callable[[], T], *, reduces: tuple[int, DType, Op] | None = None) -> T:
        """Make a call on ``data`` by ``start``; ``reduces``: it is an all-reduce of (count, dtype, op)."""
        with self._lock:
            self._made += 1
            self._say(_REDUCES if reduces else _OTHER, reduces or (0, DType.UINT8, Op.SUM))
            return start()

    def join(self) -> int:
        """Take part in the others' all-reduces with zeros until all ranks have joined; the last one's rank.

        Raises:
            CommunicatorError: another rank made a call that needs data of this one.
        """
        while True:
            words = self._say(_JOINED, (0, DType.UINT8, Op.SUM), wait=True)
            at_work = [rank for rank in range(self.size) if words[rank, 0] != _JOINED]
            if not at_work:
                return max(range(self.size), key=lambda rank: (words[rank, 1], rank))
            kind, _, count, dtype, op = words[at_work[0]].tolist()
            if kind == _OTHER:
                reason = f"rank {self.rank} has joined (hvd.join), and rank {at_work[0]} called something "
                reason += "else than an all-reduce"
                self.data.abort(reason)
                raise CommunicatorError(reason)
            zeros = np.zeros(count, dtype=NUMPY[DType(dtype)])
            self.data.all_reduce(Buffer.of(zeros, DType(dtype)), Op(op), name="joined").wait()

    def _say(self, kind: int, reduces: tuple[int, DType, Op], *, wait: bool = False) -> Any:
        own_word = np.array([kind, self._made, *reduces], dtype=np.int64)
        words = np.empty((self.size, own_word.size), dtype=np.int64)
        said = self._words.all_gather(Buffer.of(own_word), Buffer.of(words), name="next call")
        if wait:
            said.wait()
        return words


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
