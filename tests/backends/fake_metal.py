"""A stand-in for ``torch.mps`` on machines without Metal. Its "MPS tensors" are CPU tensors.

The GPU is a thread that runs what was encoded, in order. It writes down who called what.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import Any

import torch

GPU_S = 10.0
"""The longest that the GPU waits for a gate, and anyone for the GPU."""

_POLLIN = 1


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class FakeMetal:
    """``holds_gil``: events are waited for as in torch 2.12, with Python's lock held."""

    def __init__(self, *, holds_gil: bool = False) -> None:
        self.calls: list[tuple[int, str]] = []
        """(thread, name) of each call."""
        self.waited_for = threading.Semaphore(0)
        """Released as somebody begins to wait for an event."""
        self.holds_gil = holds_gil
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._gpu = threading.Thread(target=self._run, daemon=True)
        self._gpu.start()

    def encode(self, work: Callable[[], Any]) -> None:
        """What PyTorch's operations do: returns at once, runs when the GPU comes to it."""
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        self._work.put(None)
        self._gpu.join(GPU_S)

    def note(self, name: str) -> None:
        self.calls.append((threading.get_ident(), name))

    # torch.mps ------------------------------------------------------------------------------------

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        self.note("Event")
        return FakeEvent(self)

    def _host_alias_storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        self.note("_host_alias_storage")
        return storage

    def synchronize(self) -> None:
        self.note("synchronize")


class FakeEvent:
    def __init__(self, metal: FakeMetal) -> None:
        self._metal = metal
        self._reached, self._reach = os.pipe()

    def record(self) -> None:
        self._metal.note("Event.record")
        end = os.dup(self._reach)  # the GPU's own: it doesn't keep this event alive

        def signal() -> None:
            with contextlib.suppress(BrokenPipeError), open(end, "wb") as reached:  # nobody may wait any more
                reached.write(b"!")

        self._metal.encode(signal)

    def synchronize(self) -> None:
        self._metal.note("Event.synchronize")
        self._metal.waited_for.release()
        if self._metal.holds_gil:
            fds = (_PollFd * 1)(_PollFd(self._reached, _POLLIN, 0))
            reached = ctypes.PyDLL(None).poll(fds, 1, 500) == 1
        else:
            reached = bool(select.select([self._reached], [], [], GPU_S)[0])
        if not reached:
            raise RuntimeError("the GPU didn't get there while this thread waited")

    def __del__(self) -> None:
        self._metal.note("Event.__del__")
        os.close(self._reached)
        os.close(self._reach)
