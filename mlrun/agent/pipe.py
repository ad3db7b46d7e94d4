"""The agent's end of the control plane: lines in, lines out, never blocking on a slow launcher."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from mlrun.protocol import LogEvent, TelemetryEvent
from mlrun.wire import Message, encode

LINE_LIMIT = 1 << 24
"""Bytes of the longest message that is read."""
_LOG_BACKLOG = 1 << 20
"""Unsent bytes above which log lines and telemetry are dropped; every log file has its lines."""


class Pipe:
    """Messages over two descriptors (pipes, or the sockets that sshd gives)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._dropped = 0

    @classmethod
    async def open(cls, stdin: int, stdout: int) -> Pipe:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdin, "rb"))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(stdout, "wb")
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def read(self) -> bytes:
        """The next line; empty at the end of input or after a line that is too long to be a message."""
        try:
            return await self._reader.readline()
        except (ValueError, ConnectionError):
            return b""

    def send(self, message: Message) -> None:
        """Queue ``message``. A launcher that is gone is noticed by ``read``."""
        backlog = self._writer.transport.get_write_buffer_size()
        if isinstance(message, LogEvent | TelemetryEvent) and backlog > _LOG_BACKLOG:
            self._dropped += isinstance(message, LogEvent)
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self.send(LogEvent(f"{dropped} log lines are only in the log files: the launcher reads slowly"))
        self._writer.write(encode(message))

    async def drain(self) -> None:
        """Wait until a slow launcher has read most of what was sent."""
        with suppress(ConnectionError):
            await self._writer.drain()

    async def close(self, timeout_s: float) -> None:
        """Send what is queued within ``timeout_s``, then close."""
        self._writer.close()
        with suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), timeout_s)
