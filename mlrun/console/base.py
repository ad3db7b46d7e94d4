"""Console: what every view of a run is."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from types import TracebackType
from typing import TextIO

from mlrun.protocol import Event, LogEvent


class Console(ABC):
    """A consumer of a run's events, given in the order of ``events.jsonl``. One thread calls it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False
        self._ranks: Collection[int] | None = None

    def show_output_of(self, ranks: Collection[int]) -> None:
        """Of what workers print, show these ranks' alone."""
        self._ranks = ranks

    def show(self, event: Event) -> None:
        """Take in one event. Never raises for a reader that went away: training doesn't need one."""
        if self._gone or self._is_left_out(event):
            return
        try:
            self._show(event)
        except OSError:
            self._forget_reader()

    def close(self) -> None:
        """Print how the run ended and leave the terminal as it was. May be called twice."""
        if self._gone:
            return
        try:
            self._close()
            self._stream.flush()
        except OSError:
            self._forget_reader()
        self._gone = True

    @abstractmethod
    def _show(self, event: Event) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _is_left_out(self, event: Event) -> bool:
        printed = isinstance(event, LogEvent) and event.source != "mlrun"
        return printed and self._ranks is not None and event.rank not in self._ranks

    def _forget_reader(self) -> None:
        """Send the rest nowhere, or the interpreter would fail on flushing it at its exit."""
        self._gone = True
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
