"""Measure the links between two hosts before any worker is there: round trip and bandwidth over TCP.

A probe, all fields of fixed length::

    dialler  -> magic, nonce
    acceptor -> nonce, proof("accept")
    dialler  -> proof("dial"), milliseconds to send for
    acceptor -> as many bytes back as come, one by one: ECHOES times
    dialler  -> zeros, for that long
    acceptor -> bytes and microseconds, of the last two thirds of that time

Both ends prove that they know the run's secret before anything is measured, and everything is bounded in
time and bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from mlrun.allreduce.tcp import (
    force_interface,
    format_endpoint,
    parse_endpoint,
    plain,
    receive_exactly,
    resolve,
    seen_through,
    send_all,
    tcp_socket,
)
from mlrun.protocol import LinkEnd, LinkMeasured, LinkTry

CONNECT_S = 0.7
ANSWER_S = 2.0
"""How long the other end may be silent."""
LONGEST_S = 1.0
MOST_BYTES = 1 << 30
MOST_PENDING = 128
"""Connections that are answered at once; one more drops the oldest."""
MOST_DIALS = 32
"""Probes made at once: macOS gives a process 256 open files."""
ECHOES = 3
_MAGIC = b"mlrunP1\n"
_NONCE = _PROOF = 32
_REQUEST = struct.Struct(">I")
_RESULT = struct.Struct(">QQ")
_CHUNK = 1 << 20
_WARM_UP = 1 / 3
"""Share of the time that isn't counted: buffers fill and TCP finds its speed."""


class _RefusedError(Exception):
    """The other end isn't an agent of this run."""


class LinkProbe:
    """Answers other agents' probes, and makes its own."""

    def __init__(self, secret: str) -> None:
        self._key = bytes.fromhex(secret)
        self._dials = asyncio.Semaphore(MOST_DIALS)
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: dict[socket.socket, asyncio.Task[None]] = {}

    def listen(self, ends: Sequence[LinkEnd], ports: Sequence[int] | None) -> list[str | None]:
        """Answer on ``ends`` from now on; the endpoint of each, None where that can't be."""
        return [self._listen(end, ports or (0, 0)) for end in ends]

    def close(self) -> None:
        """Answer no longer."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def measure(self, request: LinkTry) -> LinkMeasured:
        """Make one probe; a link that can't be used is an answer too."""
        async with self._dials:
            return await self._measure(request)

    async def _measure(self, request: LinkTry) -> LinkMeasured:
        sock: socket.socket | None = None
        try:
            address, port = parse_endpoint(request.far)
            if request.near.interface is not None:
                address = seen_through(address, request.near.interface)
            sock, where = _socket(request.near, address, port)
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, where), CONNECT_S)
            seconds = min(request.seconds, LONGEST_S)
            return await asyncio.wait_for(self._probe(sock, request.number, seconds), ANSWER_S + seconds)
        except (OSError, EOFError, ValueError, _RefusedError, asyncio.TimeoutError) as error:
            return LinkMeasured(request.number, problem=plain(error))
        finally:
            if sock is not None:
                sock.close()

    # Dialling -----------------------------------------------------------------------------------

    async def _probe(self, sock: socket.socket, number: int, seconds: float) -> LinkMeasured:
        mine = secrets.token_bytes(_NONCE)
        await send_all(sock, _MAGIC + mine)
        theirs, proof = await receive_exactly(sock, _NONCE), await receive_exactly(sock, _PROOF)
        if not hmac.compare_digest(proof, self._proof(b"accept", mine, theirs)):
            raise _RefusedError("what answers there isn't an agent of this run")
        await send_all(sock, self._proof(b"dial", mine, theirs) + _REQUEST.pack(round(seconds * 1e3)))
        round_trip_s = min([await _echo(sock) for _ in range(ECHOES)])
        if not seconds:
            return LinkMeasured(number, round_trip_s)
        pumping = asyncio.ensure_future(_pump(sock, seconds))
        try:
            count, microseconds = _RESULT.unpack(await receive_exactly(sock, _RESULT.size))
        finally:
            pumping.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await pumping
        return LinkMeasured(number, round_trip_s, count / microseconds * 1e6 if microseconds else None)

    # Answering ----------------------------------------------------------------------------------

    def _listen(self, end: LinkEnd, ports: Sequence[int]) -> str | None:
        for port in range(ports[0], ports[-1] + 1):
            with suppress(OSError):
                sock, where = _socket(end, end.address, port, bind=False)
                try:
                    if port:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(where)
                    sock.listen(MOST_PENDING)
                except OSError:
                    sock.close()
                    raise
                self._listeners.append(sock)
                self._start(self._accept(sock))
                return format_endpoint(sock.getsockname())
        return None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            sock.setblocking(False)
            if len(self._answering) >= MOST_PENDING:
                next(iter(self._answering.values())).cancel()
            self._answering[sock] = self._start(self._answer(sock))

    async def _answer(self, sock: socket.socket) -> None:
        try:
            seconds = await asyncio.wait_for(self._admit(sock), ANSWER_S)
            for _ in range(ECHOES):
                await send_all(sock, await asyncio.wait_for(receive_exactly(sock, 1), ANSWER_S))
            if seconds:
                await send_all(sock, _RESULT.pack(*await _count(sock, min(seconds, LONGEST_S))))
                with suppress(asyncio.TimeoutError):  # what is still on its way would turn into a reset
                    await asyncio.wait_for(_drain(sock), ANSWER_S)
        except (OSError, EOFError, _RefusedError, asyncio.TimeoutError):
            pass  # the dialler tells what became of it; a stranger isn't worth a word
        finally:
            del self._answering[sock]
            sock.close()

    async def _admit(self, sock: socket.socket) -> float:
        """Check who connected; how many seconds they are going to send."""
        if await receive_exactly(sock, len(_MAGIC)) != _MAGIC:
            raise _RefusedError
        theirs, mine = await receive_exactly(sock, _NONCE), secrets.token_bytes(_NONCE)
        await send_all(sock, mine + self._proof(b"accept", theirs, mine))
        proof = await receive_exactly(sock, _PROOF)
        if not hmac.compare_digest(proof, self._proof(b"dial", theirs, mine)):
            raise _RefusedError
        (milliseconds,) = _REQUEST.unpack(await receive_exactly(sock, _REQUEST.size))
        return float(milliseconds) / 1e3

    def _proof(self, role: bytes, dialler: bytes, acceptor: bytes) -> bytes:
        return hmac.digest(self._key, b"|".join((b"probe", role, dialler, acceptor)), "sha256")


def _socket(near: LinkEnd, address: str, port: int, *, bind: bool = True) -> tuple[socket.socket, Any]:
    """A socket kept to ``near``'s interface, and ``address`` for it."""
    family, where = resolve(address, port)
    sock = tcp_socket(family)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if near.interface is not None:
            force_interface(sock, near.interface)
        if bind:
            sock.bind(resolve(near.address, 0)[1])
    except BaseException:
        sock.close()
        raise
    return sock, where


async def _echo(sock: socket.socket) -> float:
    start = time.perf_counter()
    await send_all(sock, b"e")
    await receive_exactly(sock, 1)
    return time.perf_counter() - start


async def _pump(sock: socket.socket, seconds: float) -> None:
    """Send for ``seconds``; the other end looks at its own clock, so a full buffer does no harm."""
    chunk = bytes(_CHUNK)
    end = time.perf_counter() + seconds
    left = MOST_BYTES
    while left > 0 and time.perf_counter() < end:
        await send_all(sock, chunk)
        left -= _CHUNK


async def _count(sock: socket.socket, seconds: float) -> tuple[int, int]:
    """Bytes and microseconds of what arrives within ``seconds`` of the first byte, without the warm-up.

    The rate is over that time at least, not over the span in which bytes were read: on a busy host much may
    come out of a buffer in an instant.
    """
    buffer = memoryview(bytearray(_CHUNK))
    loop = asyncio.get_running_loop()
    await asyncio.wait_for(loop.sock_recv_into(sock, buffer), ANSWER_S)
    warm_at = time.perf_counter() + _WARM_UP * seconds
    warm: float | None = None
    count = 0

    async def take() -> None:
        nonlocal warm, count
        while (got := await loop.sock_recv_into(sock, buffer)) and count < MOST_BYTES:
            if warm is not None:
                count += got
            elif (now := time.perf_counter()) >= warm_at:
                warm = now

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(take(), seconds)
    if warm is None:
        return 0, 0
    return count, round(max(time.perf_counter() - warm, (1 - _WARM_UP) * seconds) * 1e6)


async def _drain(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    while await asyncio.get_running_loop().sock_recv_into(sock, buffer):
        pass
