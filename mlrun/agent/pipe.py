"""The agent's end of the control plane: lines in, lines out, never blocking on a slow launcher."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from mlrun.protocol import LogEvent, Received, TelemetryEvent
from mlrun.wire import Message, Unreceived, decode, encode

LINE_LIMIT = 1 << 24
"""Bytes of the longest message that is read."""
_LOG_BACKLOG = 1 << 20
"""Unsent bytes above which log lines and telemetry are dropped; every log file has its lines."""
_UNRECEIVED_LIMIT = 1 << 24
"""Bytes kept for a launcher that is away; past it, workers have to wait."""


class Pipe:
    """Messages over two descriptors (pipes, or the sockets that sshd gives).

    A ``lasting`` one outlives its connection: what the launcher hasn't received is kept, and sent again once
    it attaches over another one.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        transports: Sequence[asyncio.ReadTransport | asyncio.WriteTransport],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._transports = transports
        self.lasting = False
        self._unreceived = Unreceived()
        self._received = 0
        self._attached = asyncio.Event()
        self._attached.set()
        self._room = asyncio.Condition()
        self._dropped = 0

    @classmethod
    async def open(cls, stdin: int, stdout: int) -> Pipe:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdin, "rb")
        )
        outgoing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(stdout, "wb")
        )
        return cls(reader, asyncio.StreamWriter(outgoing, protocol, None, loop), [incoming, outgoing])

    async def read(self) -> Message | None:
        """The launcher's next message; None at the end of input, which a lasting pipe doesn't have.

        Raises:
            ProtocolError: what came isn't a message.
        """
        while True:
            reader = self._reader
            line = await _line(reader)
            if reader is not self._reader:
                continue  # What the old connection had left comes again over the new one.
            if not line.endswith(b"\n"):
                if not self.lasting:
                    return None
                self._detach()
                await self._attached.wait()
                continue
            message = decode(line)
            if isinstance(message, Received):
                await self._has_received(message.count)
                self._write(encode(Received(self._received)))
                continue
            self._received += 1
            return message

    async def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        """Go on over another connection, whose launcher has received ``count`` messages."""
        self._detach()
        self._reader, self._writer, self._transports = reader, writer, [writer.transport]
        await self._has_received(count)
        writer.write(encode(Received(self._received)))
        writer.writelines(self._unreceived.lines())
        self._attached.set()

    def send(self, message: Message) -> None:
        """Queue ``message``. A launcher that is gone is noticed by ``read``."""
        if isinstance(message, LogEvent | TelemetryEvent) and self._backlog() > _LOG_BACKLOG:
            self._dropped += isinstance(message, LogEvent)
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self.send(LogEvent(f"{dropped} log lines are only in the log files: the launcher reads slowly"))
        line = encode(message)
        if self.lasting:
            self._unreceived.add(line)
        self._write(line)

    async def drain(self) -> None:
        """Wait until a slow launcher has read most of what was sent, or one that is away has come back."""
        with suppress(ConnectionError):
            await self._writer.drain()
        async with self._room:
            await self._room.wait_for(lambda: self._unreceived.bytes < _UNRECEIVED_LIMIT)

    async def close(self, timeout_s: float) -> None:
        """Send what is queued within ``timeout_s``, then close."""
        self._writer.close()
        with suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), timeout_s)

    def _backlog(self) -> int:
        if self._attached.is_set():
            return self._writer.transport.get_write_buffer_size()
        return self._unreceived.bytes

    def _write(self, line: bytes) -> None:
        if self._attached.is_set():
            self._writer.write(line)

    async def _has_received(self, count: int) -> None:
        self._unreceived.received(count)
        async with self._room:
            self._room.notify_all()

    def _detach(self) -> None:
        self._attached.clear()
        for transport in self._transports:
            if transport.is_closing():
                continue
            transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
        self._reader.feed_eof()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; one without its end is the last, or too long to be a message."""
    try:
        return await reader.readline()
    except (ValueError, ConnectionError):
        return b""
