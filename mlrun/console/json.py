"""The json view: each event on a line, exactly as events.jsonl holds it."""

from __future__ import annotations

from mlrun.console.base import Console
from mlrun.protocol import Event
from mlrun.wire import encode


class JsonConsole(Console):
    def _show(self, event: Event) -> None:
        self._stream.write(encode(event).decode())
        self._stream.flush()

    def _close(self) -> None:
        pass
