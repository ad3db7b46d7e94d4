"""Authenticated neighbour links beside an engine with sockets of its own (gloo, MPI).

They carry no payload: rank 0's word to all when a group is made, the reason of an abort, and the news that a
peer has gone, which those engines notice late or never.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import cast

from mlrun.allreduce.communicator import CommunicatorError, PeerLostError
from mlrun.allreduce.links import Listener, connect_ring
from mlrun.protocol import Plan

JOIN_TIMEOUT_S = 120.0
"""Workers import their frameworks before they join, some minutes apart on a cold disk."""

_HEADER = struct.Struct(">cI")
_WORD, _ABORT, _BYE = b"W", b"A", b"B"
_LONGEST = 1 << 24


class SideChannel:
    """One rank's links to its neighbours in the ring of ``plan``.

    Raises:
        LinkError: a neighbour is missing.
    """

    def __init__(self, plan: Plan, rank: int, listener: Listener, secret: str) -> None:
        self._rank, self._hosts = rank, plan.hosts
        size = len(plan.hosts)
        links = connect_ring(
            listener,
            rank,
            plan.endpoints,
            plan.hosts,
            secret,
            generation=plan.generation,
            paths=plan.paths,
            timeout_s=JOIN_TIMEOUT_S,
        )
        self._peers: dict[socket.socket, int] = {}
        self._peers |= {sock: (rank + 1) % size for sock in links.next}
        self._peers |= {sock: (rank - 1) % size for sock in links.previous}
        self._links = links
        self._thread: threading.Thread | None = None
        self._closing = False
        self._aborted = False

    @property
    def address(self) -> str | None:
        """The address by which this host's neighbours reach it; None for a single rank."""
        return self._links.next[0].getsockname()[0] if self._links.next else None

    def share(self, word: str | None, timeout_s: float = JOIN_TIMEOUT_S) -> str:
        """Rank 0's ``word``, on every rank. Only before ``watch``.

        Raises:
            CommunicatorError: it didn't come within ``timeout_s``.
        """
        size = len(self._hosts)
        if self._rank:
            source = (self._links.previous or self._links.next)[0]
            source.settimeout(timeout_s)
            try:
                kind, word = _receive(source)
            except (OSError, EOFError) as error:
                raise CommunicatorError(
                    f"rank {self._rank} ({self._hosts[self._rank]}): rank 0 ({self._hosts[0]}) said nothing "
                    f"when the group was made: {error}"
                ) from None
            if kind != _WORD:
                raise CommunicatorError(f"rank 0 ({self._hosts[0]}) gave up while the group was made: {word}")
        if word is None:
            raise ValueError("rank 0 shares a word")
        if size > 1 and self._rank + 1 < size:
            _send([self._links.next[0]], _WORD, word)
        return word

    def watch(self, on_abort: Callable[[str], None], on_lost: Callable[[PeerLostError], None]) -> None:
        """From now on call ``on_abort`` with a peer's reason, ``on_lost`` when a neighbour has gone."""
        if self._peers:
            self._thread = threading.Thread(
                target=self._watch, args=(on_abort, on_lost), name="mlrun-side-channel", daemon=True
            )
            self._thread.start()

    def abort(self, reason: str) -> None:
        """Tell all peers. Idempotent."""
        if not self._aborted:
            self._aborted = True
            _send(self._peers, _ABORT, reason)

    def close(self) -> None:
        """Say goodbye. Idempotent."""
        if not self._closing:
            self._closing = True
            _send(self._peers, _BYE, "")
            for sock in self._peers:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            if self._thread is None:
                self._links.close()

    def _watch(self, on_abort: Callable[[str], None], on_lost: Callable[[PeerLostError], None]) -> None:
        with selectors.DefaultSelector() as waiting:
            for sock in self._peers:
                sock.settimeout(5.0)
                waiting.register(sock, selectors.EVENT_READ)
            # Passed on before it's told here: whoever waits here may end the process at once.
            while waiting.get_map():
                for key, _ in waiting.select():
                    sock = cast(socket.socket, key.fileobj)
                    try:
                        kind, text = _receive(sock)
                    except (OSError, EOFError) as error:
                        kind, text = b"", str(error)
                    if kind == _ABORT:
                        self.abort(text)
                        on_abort(text)
                        continue
                    waiting.unregister(sock)
                    if kind != _BYE and not self._closing:
                        peer = self._peers[sock]
                        lost = f"rank {peer} ({self._hosts[peer]}) has gone: {text}"
                        self.abort(lost)
                        on_lost(PeerLostError(lost))
        self._links.close()


def _send(sockets: Iterable[socket.socket], kind: bytes, text: str) -> None:
    data = text.encode()
    for sock in sockets:
        with contextlib.suppress(OSError):  # a peer that has gone is noticed by whoever reads from it
            sock.sendall(_HEADER.pack(kind, len(data)) + data)


def _receive(sock: socket.socket) -> tuple[bytes, str]:
    kind, length = _HEADER.unpack(_exactly(sock, _HEADER.size))
    if length > _LONGEST:
        raise EOFError("it sent garbage")
    return kind, _exactly(sock, length).decode(errors="replace")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError("it closed its link without a goodbye")
        data += part
    return data
