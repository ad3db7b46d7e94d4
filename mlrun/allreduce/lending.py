"""Memory lent to the native engine until its calls have ended."""

from __future__ import annotations

import contextlib
import threading
from collections import deque

from mlrun.allreduce import _ring
from mlrun.allreduce.communicator import Buffer

_MANY_WORKS = 64
"""So many calls may be kept before those that have ended behind an older one are looked for."""
_DROPPED_S = 5.0
"""The longest that an aborted call takes to let go of its memory."""


class RingWork:
    """A Work that keeps its buffers alive until it has ended."""

    __slots__ = ("_buffers", "_work")

    def __init__(self, work: _ring.Work, buffers: tuple[Buffer, ...]) -> None:
        self._work = work
        self._buffers = buffers

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._work.wait(-1.0 if timeout_s is None else timeout_s):
            raise TimeoutError(f"the operation is still under way after {timeout_s} s")

    def done(self) -> bool:
        return self._work.done()

    def times(self) -> tuple[float, float] | None:
        return self._work.times()


class Lent:
    """Memory that is the engine's until its calls have ended, whoever drops a Work meanwhile."""

    def __init__(self, engine: _ring.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._works: deque[RingWork] = deque()
        self._limit = _MANY_WORKS

    def lend(self, work: RingWork) -> None:
        """Keep ``work``, and let those go that have ended. Any thread may call it."""
        with self._lock:
            while self._works and self._works[0].done():
                self._works.popleft()
            if len(self._works) >= self._limit:  # behind one that lasts, such as a receive
                self._works = deque(each for each in self._works if not each.done())
                self._limit = max(_MANY_WORKS, 2 * len(self._works))
            self._works.append(work)

    def __del__(self) -> None:
        """All communicators were dropped: without ``close`` threads may still be at work on this memory."""
        left = [work for work in self._works if not work.done()]
        if left:
            self._engine.abort("its communicator was dropped with calls under way")
        for work in left:
            # A CommunicatorError, or what becomes of it while the interpreter ends.
            with contextlib.suppress(RuntimeError, TimeoutError):
                work.wait(_DROPPED_S)
