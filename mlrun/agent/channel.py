"""The agent's Unix socket: one connection per worker, messages both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from mlrun.agent.pipe import LINE_LIMIT
from mlrun.protocol import Stop, WorkerHello, WorkerStart
from mlrun.wire import Message, ProtocolError, decode, encode

HELLO_S = 10.0
"""A connection that hasn't said WorkerHello by then is closed."""


class Channels:
    """The workers' connections. The socket's folder is open to this user only, which is who may connect."""

    def __init__(
        self, path: Path, forward: Callable[[Message, int], None], drain: Callable[[], Awaitable[None]]
    ) -> None:
        self.path = path
        self._forward = forward
        self._drain = drain
        self._starts: dict[int, WorkerStart] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._ended: dict[int, asyncio.Event] = {}
        self._stop: Stop | None = None
        self._server: asyncio.AbstractServer | None = None

    async def open(self, starts: dict[int, WorkerStart]) -> None:
        """Listen for the workers of ``starts``, keyed by local rank."""
        self._starts = starts
        self._ended = {local_rank: asyncio.Event() for local_rank in starts}
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=LINE_LIMIT)

    def send_all(self, message: Message) -> None:
        """Pass ``message`` on to every worker; a Stop also to those that connect later."""
        if isinstance(message, Stop):
            self._stop = message
        for writer in self._writers.values():
            writer.write(encode(message))

    async def ended(self, local_rank: int, timeout_s: float) -> None:
        """Wait until a worker's connection has ended, if it had one, and all that it said was passed on."""
        if local_rank not in self._writers:
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended[local_rank].wait(), timeout_s)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local_rank = None
        try:
            hello = decode(await asyncio.wait_for(reader.readline(), HELLO_S))
            if not isinstance(hello, WorkerHello) or not self._expected(hello.local_rank):
                return
            local_rank = hello.local_rank
            self._writers[local_rank] = writer
            start = self._starts[local_rank]
            self._forward(hello, start.assignment.rank)
            writer.write(encode(start))
            if self._stop is not None:
                writer.write(encode(self._stop))
            while line := await reader.readline():
                self._forward(decode(line), start.assignment.rank)
                await self._drain()
        except (ProtocolError, ValueError, ConnectionError, asyncio.TimeoutError):
            pass  # what a dying worker half-said; its exit is reported by whoever watches the process
        finally:
            if local_rank is not None:
                self._ended[local_rank].set()
            writer.close()

    def _expected(self, local_rank: int) -> bool:
        return local_rank in self._starts and local_rank not in self._writers
