"""Open and authenticate the sockets between ring neighbours.

Either end may open a link: rank r dials rank r+1, and rank r+1 dials back where that takes too long,
since a Mac under Local Network Privacy may only be able to accept. Both ends prove that they know the run's
secret before a byte of payload (HMAC-SHA256 challenge and response, both ways, fresh nonces). This
authenticates a link when it opens; it doesn't encrypt what follows.

A handshake, all fields big-endian and of fixed length::

    dialler  -> hello: magic, generation, dialler's rank, acceptor's rank, link, nonce
    acceptor -> nonce, proof("accept")
    dialler  -> proof("dial")
    owner    -> COMMIT          the owner of a link is the rank that has it in `next`
    other    -> ACK

Where both ends dialled at once, the owner's COMMIT says which connection becomes the link.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import socket
import struct
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mlrun.allreduce.listener import LinkError, Listener
from mlrun.allreduce.tcp import format_endpoint, parse_endpoint, plain, receive_exactly, send_all
from mlrun.allreduce.ways import Way, ways
from mlrun.protocol import LinkPath

__all__ = ["LinkError", "Listener", "RingLinks", "connect_ring", "parse_endpoint"]

logger = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""How long whoever connected to us may take to prove who they are."""
MAX_PENDING = 64
"""Unproven connections held at once; one more drops the oldest, since a real peer takes milliseconds."""
_DIAL_BACK_AFTER_S = 1.0
_CONNECT_S = 3.0
_REPLY_S = 20.0
"""A dialled peer may still be importing its framework while its listener already takes connections."""
_PAUSE_S = (0.05, 1.0)
_LOGGED_STRANGERS = 10
_SILENT = "connected, but no answer: that worker is still starting, or stuck"

_MAGIC = b"mlrunL1\n"
_CONTEXT = struct.Struct(">8sQIIH")
_NONCE = _PROOF = 32
_COMMIT, _ACK = b"C", b"A"


@dataclass(frozen=True, slots=True)
class RingLinks:
    """Authenticated, blocking TCP sockets to the two neighbours.

    Socket i of rank r's ``next`` is the other end of socket i of rank r+1's ``previous``. With two ranks both
    hold all sockets in ``next``; a single rank has none.
    """

    next: list[socket.socket] = field(default_factory=list)
    previous: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Close what no engine has taken over. Idempotent."""
        for sock in (*self.next, *self.previous):
            sock.close()


def connect_ring(
    listener: Listener,
    rank: int,
    endpoints: Sequence[Sequence[str]],
    hosts: Sequence[str],
    secret: str,
    *,
    generation: int,
    links: int = 1,
    paths: Sequence[Sequence[LinkPath]] = (),
    timeout_s: float,
) -> RingLinks:
    """Open ``links`` sockets, and one per path at least, to each ring neighbour; all ranks call it alike.

    Link i prefers path i (modulo their number; without paths, the neighbour's endpoint i) and falls back to
    the others. Strangers, other runs and generations, replays and silent connections are dropped and logged.
    The listener stays open.

    Args:
        endpoints: ``endpoints[r]``: where rank r listens.
        hosts: ``hosts[r]``: the name of rank r's host, for messages.
        secret: hex, at least 16 bytes, the same on all ranks of the run and known to nobody else.
        paths: ``paths[r]``: the ways between rank r and the next one; a dial is kept to its own interface.
        timeout_s: seconds until all links must be open.

    Raises:
        LinkError: names each neighbour that is missing, where it was tried and the likely reason.
        ValueError: a malformed endpoint, a secret too short, or lists of different length.
    """
    key = bytes.fromhex(secret)
    if len(key) < 16:
        raise ValueError("the secret of a run has at least 16 bytes")
    if len(hosts) != len(endpoints) or not 0 <= rank < len(hosts) or links < 1:
        raise ValueError(
            f"rank {rank} of {len(hosts)} hosts with {len(endpoints)} endpoint lists, {links} links"
        )
    if len(hosts) == 1:
        return RingLinks()
    if paths and (len(paths) != len(hosts) or not all(paths[: 1 if len(hosts) == 2 else None])):
        raise ValueError(f"{len(hosts)} ranks need a path each to the next one")
    links = max([links, *map(len, paths)])
    edges = [
        _Edge(
            peer,
            owned,
            ways(endpoints[peer], paths[rank if owned else peer] if paths else None, owned),
            [None] * links,
        )
        for peer, owned in _neighbours(rank, len(hosts))
    ]
    joining = _Joining(listener, rank=rank, edges=edges, hosts=hosts, key=key, generation=generation)
    return _run(joining.join(timeout_s))


def _neighbours(rank: int, size: int) -> list[tuple[int, bool]]:
    """Each neighbour, and whether this rank owns the links to it: the one after it in the ring first."""
    if size == 2:
        return [(1 - rank, rank == 0)]
    return [((rank + 1) % size, True), ((rank - 1) % size, False)]


def _run(joining: Coroutine[Any, Any, RingLinks]) -> RingLinks:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(joining)
    # The caller sits inside an event loop (a notebook), where a second one can't run.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, joining).result()


@dataclass(slots=True)
class _Edge:
    """The links to one neighbour. The owner has them in ``next``."""

    peer: int
    owned: bool
    ways: list[Way]
    sockets: list[socket.socket | None]
    committing: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    """Per link: why the last attempt to dial failed."""


class _StrangerError(Exception):
    """Whoever is at the other end can't prove to be the expected rank of this run."""


class _Joining:
    """One rank's call of connect_ring."""

    def __init__(
        self,
        listener: Listener,
        *,
        rank: int,
        edges: list[_Edge],
        hosts: Sequence[str],
        key: bytes,
        generation: int,
    ) -> None:
        self._listener, self._rank, self._edges, self._hosts = listener, rank, edges, hosts
        self._key, self._generation = key, generation
        self._complete = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[socket.socket, asyncio.Task[None]] = {}
        self._strangers = 0

    async def join(self, timeout_s: float) -> RingLinks:
        for listening in self._listener.sockets:
            self._start(self._accept(listening))
        for edge, link in self._links():
            self._start(self._dial(edge, link))
        try:
            await asyncio.wait_for(self._complete.wait(), timeout_s)
        except BaseException as error:
            for edge, link in self._links():
                if (sock := edge.sockets[link]) is not None:
                    sock.close()
            if isinstance(error, asyncio.TimeoutError):
                raise LinkError(self._explain(timeout_s)) from None
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        opened = [[sock for sock in edge.sockets if sock is not None] for edge in self._edges]
        for sock in itertools.chain(*opened):
            sock.setblocking(True)
        return RingLinks(*opened)

    def _links(self) -> Iterator[tuple[_Edge, int]]:
        return ((edge, link) for edge in self._edges for link in range(len(edge.sockets)))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Opening ------------------------------------------------------------------------------------

    async def _dial(self, edge: _Edge, link: int) -> None:
        if not edge.owned:
            await asyncio.sleep(_DIAL_BACK_AFTER_S)
        pause, attempt = _PAUSE_S[0], link
        while edge.sockets[link] is None and edge.ways:
            way = edge.ways[attempt % len(edge.ways)]
            try:
                await self._dial_once(edge, link, way)
            except (OSError, EOFError, _StrangerError, asyncio.TimeoutError) as error:
                edge.reasons[link] = f"{format_endpoint((way.address, way.port))}: {plain(error)}"
            await asyncio.sleep(pause)
            pause, attempt = min(2 * pause, _PAUSE_S[1]), attempt + 1

    async def _dial_once(self, edge: _Edge, link: int, way: Way) -> None:
        sock, where = way.prepare()
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, where), _CONNECT_S)
            try:
                await asyncio.wait_for(self._greet(edge, link, sock), _REPLY_S)
            except asyncio.TimeoutError:
                raise _StrangerError(_SILENT) from None
        finally:
            if edge.sockets[link] is not sock:
                sock.close()

    async def _greet(self, edge: _Edge, link: int, sock: socket.socket) -> None:
        context = _CONTEXT.pack(_MAGIC, self._generation, self._rank, edge.peer, link)
        mine = secrets.token_bytes(_NONCE)
        await send_all(sock, context + mine)
        theirs, proof = await receive_exactly(sock, _NONCE), await receive_exactly(sock, _PROOF)
        if not hmac.compare_digest(proof, self._proof(b"accept", context, mine, theirs)):
            raise _StrangerError("what answers there isn't the expected rank of this run")
        await send_all(sock, self._proof(b"dial", context, mine, theirs))
        await self._settle(edge, link, sock)

    # Accepting ----------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, where = await loop.sock_accept(listening)
            except OSError as error:
                self._note(f"accepting a connection failed: {plain(error)}")
                await asyncio.sleep(_PAUSE_S[0])
                continue
            sock.setblocking(False)
            if len(self._pending) >= MAX_PENDING:
                next(iter(self._pending.values())).cancel()
            self._pending[sock] = self._start(self._admit(sock, format_endpoint(where)))

    async def _admit(self, sock: socket.socket, where: str) -> None:
        """Check who connected; keep the socket only as a link."""
        try:
            await asyncio.wait_for(self._challenge(sock), HANDSHAKE_S)
        except _StrangerError as error:
            self._note(f"dropped a connection from {where}: {error}")
        except asyncio.TimeoutError:
            self._note(f"dropped a connection from {where}: silent for {HANDSHAKE_S:g} s")
        except (OSError, EOFError) as error:
            logger.debug("a connection from %s ended in its handshake: %s", where, plain(error))
        finally:
            del self._pending[sock]
            if not any(edge.sockets[link] is sock for edge, link in self._links()):
                sock.close()

    async def _challenge(self, sock: socket.socket) -> None:
        magic = await receive_exactly(sock, len(_MAGIC))
        if magic != _MAGIC:
            raise _StrangerError("doesn't speak mlrun's link protocol")
        context = magic + await receive_exactly(sock, _CONTEXT.size - len(_MAGIC))
        edge, link = self._expected(context)
        theirs, mine = await receive_exactly(sock, _NONCE), secrets.token_bytes(_NONCE)
        await send_all(sock, mine + self._proof(b"accept", context, theirs, mine))
        proof = await receive_exactly(sock, _PROOF)
        if not hmac.compare_digest(proof, self._proof(b"dial", context, theirs, mine)):
            raise _StrangerError("doesn't know the secret of this run")
        await self._settle(edge, link, sock)

    def _expected(self, context: bytes) -> tuple[_Edge, int]:
        _, generation, source, to, link = _CONTEXT.unpack(context)
        if generation != self._generation:
            raise _StrangerError(f"is of generation {generation}, this is {self._generation}")
        if to != self._rank:
            raise _StrangerError(f"looks for rank {to}, this is rank {self._rank}")
        for edge in self._edges:
            if edge.peer == source and link < len(edge.sockets):
                return edge, link
        raise _StrangerError(f"says it is link {link} of rank {source}, which isn't expected here")

    # Both ends ----------------------------------------------------------------------------------

    async def _settle(self, edge: _Edge, link: int, sock: socket.socket) -> None:
        """Agree with an authenticated peer that this socket is the link."""
        if edge.owned:
            if edge.sockets[link] is not None or link in edge.committing:
                return
            edge.committing.add(link)
            try:
                await send_all(sock, _COMMIT)
                answer = await receive_exactly(sock, 1)
            finally:
                edge.committing.discard(link)
            if answer != _ACK:
                raise _StrangerError("broke the handshake")
        else:
            if await receive_exactly(sock, 1) != _COMMIT:
                raise _StrangerError("broke the handshake")
            await send_all(sock, _ACK)
            if (older := edge.sockets[link]) is not None:
                older.close()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        edge.sockets[link] = sock
        if all(edge.sockets[link] is not None for edge, link in self._links()):
            self._complete.set()

    def _proof(self, role: bytes, context: bytes, dialler: bytes, acceptor: bytes) -> bytes:
        size = len(self._hosts).to_bytes(4, "big")
        return hmac.digest(self._key, b"|".join((role, context, size, dialler, acceptor)), "sha256")

    def _note(self, text: str) -> None:
        self._strangers += 1
        if self._strangers <= _LOGGED_STRANGERS:
            logger.warning("rank %d (%s): %s", self._rank, self._hosts[self._rank], text)

    def _explain(self, timeout_s: float) -> str:
        lines = [f"rank {self._rank} ({self._hosts[self._rank]}) has no link after {timeout_s:g} s to:"]
        for edge in self._edges:
            missing = [link for link, sock in enumerate(edge.sockets) if sock is None]
            if missing:
                links = "" if len(edge.sockets) == 1 else f" (links {', '.join(map(str, missing))})"
                reason = edge.reasons.get(missing[0], _SILENT)
                lines.append(
                    f"  rank {edge.peer} ({self._hosts[edge.peer]}){links}: {reason}; no dial from there"
                )
        if self._strangers:
            lines.append(f"  {self._strangers} connections of strangers were dropped meanwhile")
        return "\n".join(lines)
