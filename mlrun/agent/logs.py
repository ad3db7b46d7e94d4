"""A worker's output: every byte into its log file, a bounded share of its lines to the launcher."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mlrun.protocol import LogEvent

LINE_LIMIT = 2000
"""Characters of a line that travel; the file has them all."""
LINES_PER_SECOND = 50
LINES_AT_ONCE = 200
LINES_KEPT = 20
_CHUNK = 1 << 16
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Log:
    """The log of one rank, fed by its stdout and stderr."""

    def __init__(self, path: Path, emit: Callable[[LogEvent], None]) -> None:
        self._file = path.open("ab", buffering=0)
        self._name = path.name
        self._emit = emit
        self._tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._credit = float(LINES_AT_ONCE)
        self._refilled = time.monotonic()
        self._left_out = 0
        self._unwritable = False

    @property
    def last_lines(self) -> list[str]:
        return list(self._tail)

    async def follow(self, stream: asyncio.StreamReader, source: str) -> None:
        """Copy ``stream`` until its end. Memory stays bounded however much or fast it writes."""
        rest = b""
        while chunk := await stream.read(_CHUNK):
            self._write(chunk)
            *lines, rest = _LINE_END.split(rest + chunk)
            for line in lines:
                self._line(line, source)
            if len(rest) > LINE_LIMIT:
                rest = rest[: LINE_LIMIT * 4]
        if rest:
            self._line(rest, source)

    def close(self) -> None:
        self._say_left_out()
        self._file.close()

    def _write(self, chunk: bytes) -> None:
        """A full disk must not stop the reading: the worker would wait for us forever."""
        if self._unwritable:
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            self._unwritable = True
            self._emit(LogEvent(f"{self._name} ends here: {error.strerror}", level="warning"))

    def _line(self, raw: bytes, source: str) -> None:
        text = raw[: LINE_LIMIT * 4].decode(errors="replace").rstrip()[:LINE_LIMIT]
        if not text:
            return
        self._tail.append(text)
        now = time.monotonic()
        self._credit = min(LINES_AT_ONCE, self._credit + (now - self._refilled) * LINES_PER_SECOND)
        self._refilled = now
        # Once it was too much, lines come again after a quieter second: not one here and one there.
        if self._credit < (LINES_PER_SECOND if self._left_out else 1):
            self._left_out += 1
            return
        self._say_left_out()
        self._credit -= 1
        self._emit(LogEvent(text, source=source))

    def _say_left_out(self) -> None:
        if self._left_out:
            self._emit(LogEvent(f"{self._left_out} more lines are only in {self._name}"))
            self._left_out = 0
