"""The way of operations to the engine: in the order of their issue, each once its memory is ready."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from mlrun.allreduce.communicator import DeadlineError, Work
from mlrun.backends.torch.staging.base import Staged

READY_S = 1800.0
"""The longest that a device may compute on what an operation waits for."""


class Deferred:
    """A Work that the engine hasn't seen yet."""

    def __init__(self, staged: Sequence[Staged], start: Callable[[], Work]) -> None:
        self._staged = staged
        self._start = start
        self._settled = threading.Event()
        self._operation: Work | None = None
        self._error: Exception | None = None
        self.ready_at: float | None = None
        """When the device had done with the memory, on ``time.monotonic()``'s clock."""

    def run(self) -> None:
        """On the lane's thread: wait for the memory, then hand over to the engine."""
        try:
            for each in self._staged:
                each.ready()
            self.ready_at = time.monotonic()
            self._operation = self._start()
        except Exception as error:
            self._error = error
        self._settled.set()

    def wait(self, timeout_s: float | None = None) -> None:
        start = time.monotonic()
        if not self._settled.wait(READY_S if timeout_s is None else timeout_s):
            if timeout_s is None:
                raise DeadlineError(f"this rank's GPU hasn't finished a backward pass in {READY_S:g} s")
            raise TimeoutError(f"the device still computes what is to travel after {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._operation is not None
        passed = time.monotonic() - start
        self._operation.wait(None if timeout_s is None else max(0.0, timeout_s - passed))

    def done(self) -> bool:
        return self._error is not None or (self._operation is not None and self._operation.done())

    def times(self) -> tuple[float, float] | None:
        return self._operation.times() if self._operation is not None else None


class Lane:
    """Hands operations to the engine in the order of ``start`` calls, which is the same on every rank.

    What is ready, and has nothing before it that isn't, goes there at once on the caller's thread. Anything
    else goes through one thread that waits for the device, so that the caller never does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Deferred | None] = queue.SimpleQueue()
        self._queued = 0
        self._thread: threading.Thread | None = None

    def start(self, staged: Sequence[Staged], start: Callable[[], Work]) -> Work:
        """``start`` gives the operation to the engine; it is called once, when all of ``staged`` is ready."""
        with self._lock:
            if not self._queued and not any(each.waits for each in staged):
                return start()
            deferred = Deferred(staged, start)
            self._queued += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mlrun lane", daemon=True)
                self._thread.start()
            self._queue.put(deferred)
        return deferred

    def _run(self) -> None:
        while (deferred := self._queue.get()) is not None:
            deferred.run()
            del deferred  # its memory is for the issuing thread to give back
            with self._lock:
                self._queued -= 1

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._queue.put(None)
