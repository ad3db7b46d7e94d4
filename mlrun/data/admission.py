"""The store's door: both ends prove that they know the run's secret before a name or a byte is said.

All fields are of fixed length::

    reader -> MAGIC, nonce
    store  -> nonce, proof("store")
    reader -> proof("reader")

A proof is HMAC-SHA256 under the secret over the role and both nonces. It admits a connection as it opens; it
doesn't encrypt what follows.
"""

from __future__ import annotations

import hmac
import secrets
import socket

MAGIC = b"mlrunD1\n"
_NONCE = _PROOF = 32


class NotAdmittedError(ConnectionError):
    """Whoever is at the other end can't prove to be of this run."""


def enter(sock: socket.socket, key: bytes) -> None:
    """As a reader, prove who we are and check the store.

    Raises:
        NotAdmittedError: it isn't the store of this run.
        OSError, EOFError: the connection ended.
    """
    mine = secrets.token_bytes(_NONCE)
    sock.sendall(MAGIC + mine)
    theirs, proof = receive_exactly(sock, _NONCE), receive_exactly(sock, _PROOF)
    if not hmac.compare_digest(proof, _proof(key, b"store", mine, theirs)):
        raise NotAdmittedError("what answers there isn't the store of this run")
    sock.sendall(_proof(key, b"reader", mine, theirs))


def admit(sock: socket.socket, key: bytes) -> None:
    """As the store, check who connected.

    Raises:
        NotAdmittedError: a stranger.
        OSError, EOFError: the connection ended.
    """
    if receive_exactly(sock, len(MAGIC)) != MAGIC:
        raise NotAdmittedError("doesn't speak the store's protocol")
    theirs, mine = receive_exactly(sock, _NONCE), secrets.token_bytes(_NONCE)
    sock.sendall(mine + _proof(key, b"store", theirs, mine))
    if not hmac.compare_digest(receive_exactly(sock, _PROOF), _proof(key, b"reader", theirs, mine)):
        raise NotAdmittedError("doesn't know the secret of this run")


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """``count`` bytes.

    Raises:
        EOFError: the other end closed the connection before.
    """
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other end closed the connection")
        parts += part
    return bytes(parts)


def _proof(key: bytes, role: bytes, reader: bytes, store: bytes) -> bytes:
    return hmac.digest(key, b"|".join((b"mlrun data", role, reader, store)), "sha256")
