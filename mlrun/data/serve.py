"""``python -m mlrun.data.serve``: the launching machine's folder, read-only, for the hosts of one run.

One line of JSON on stdin says what to serve (``Request``); one on stdout says where. It ends with its stdin.
After the door (see ``admission``) a reader sends lines of JSON, and each is answered before the next::

    {"list": true, "offset": bytes}    -> {"size": bytes from there to the end}, frames of the listing (JSON)
    {"read": name, "offset": bytes}    -> {"size": bytes from there to the end}, frames of the file
                                       or {"problem": "..."}

A frame is its length (4 bytes, big-endian), a digest of its bytes (16), and the bytes, 1 MiB at most.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mlrun.allreduce.listener import LinkError, Listener
from mlrun.data.admission import admit
from mlrun.data.listing import list_tree, version_of

FRAME = 1 << 20
DIGEST = 16
HANDSHAKE_S = 5.0
PAUSE_S = 0.05
IDLE_S = 3600.0
"""A reader that asks for nothing for so long is hung up on; it opens another connection when it has to."""
_UNPROVEN = threading.BoundedSemaphore(64)
"""Strangers' connections that are held at once."""


@dataclass(frozen=True)
class Request:
    """What to serve, to whom and where; ``secret`` is hex, ``ports`` the first and the last one."""

    path: str
    source: str
    secret: str
    addresses: list[str]
    ports: list[int] | None


class Store:
    """The files of one folder, as they were when it was listed."""

    def __init__(self, request: Request) -> None:
        path = Path(request.path)
        self._root = path.parent if path.is_file() else path
        self._key = bytes.fromhex(request.secret)
        self.listing = list_tree(path, request.source, versions=True)
        self._entries = {entry.name: entry for entry in self.listing.entries}
        self._described = json.dumps(
            {
                # A Mac's domain changes with its network, its own name doesn't.
                "identity": f"{socket.gethostname().partition('.')[0]}:{path}",
                "entries": [dataclasses.astuple(entry) for entry in self.listing.entries],
                "folders": self.listing.folders,
            }
        ).encode()

    def accept(self, listening: socket.socket) -> None:
        """Serve whoever connects, each in a thread, until the socket is closed."""
        listening.setblocking(True)
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:  # That connection is gone again, or too many are open.
                time.sleep(PAUSE_S)
                continue
            if not _UNPROVEN.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError), sock:
            try:
                sock.settimeout(HANDSHAKE_S)
                admit(sock, self._key)
            finally:
                _UNPROVEN.release()
            sock.settimeout(IDLE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with sock.makefile("rb") as lines:
                while line := lines.readline(1 << 16):
                    self._answer(sock, json.loads(line))

    def _answer(self, sock: socket.socket, question: dict[str, Any]) -> None:
        offset = question["offset"]
        if "list" in question:
            _send(sock, io.BytesIO(self._described[offset:]), len(self._described) - offset)
            return
        entry = self._entries[question["read"]]
        try:
            with (self._root / entry.name).open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_size, version_of(status)) != (entry.size, entry.version):
                    _say(sock, {"problem": "it has changed since the run began"})
                    return
                file.seek(offset)
                _send(sock, file, status.st_size - offset)
        except (FileNotFoundError, PermissionError) as error:
            _say(sock, {"problem": (error.strerror or str(error)).lower()})


def _say(sock: socket.socket, answer: dict[str, Any]) -> None:
    sock.sendall(json.dumps(answer).encode() + b"\n")


def _send(sock: socket.socket, file: IO[bytes], size: int) -> None:
    _say(sock, {"size": size})
    while size > 0:
        content = file.read(min(size, FRAME))
        if not content:
            raise EOFError("the file became shorter")
        digest = hashlib.blake2b(content, digest_size=DIGEST).digest()
        sock.sendall(len(content).to_bytes(4, "big") + digest + content)
        size -= len(content)


def main() -> None:
    """Serve until stdin ends."""
    try:
        request = Request(**json.loads(sys.stdin.readline()))
        store = Store(request)
        listeners = _listen(request)
    except (OSError, LinkError) as error:
        _tell({"problem": str(error)})
        return
    for listener in listeners.values():
        threading.Thread(target=store.accept, args=(listener.sockets[0],), daemon=True).start()
    endpoints = {address: listener.endpoints[0] for address, listener in listeners.items()}
    _tell({"endpoints": endpoints, "files": len(store.listing.entries)})
    sys.stdin.read()


def _listen(request: Request) -> dict[str, Listener]:
    """A listener on each address; one that has just gone is left out.

    Raises:
        LinkError: there is none on which it could listen.
    """
    ports = range(request.ports[0], request.ports[-1] + 1) if request.ports else None
    listeners: dict[str, Listener] = {}
    problem = LinkError("this machine has no address")
    for address in request.addresses:
        try:
            listeners[address] = Listener([address], ports)
        except LinkError as error:
            problem = error
    if not listeners:
        raise problem
    return listeners


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
