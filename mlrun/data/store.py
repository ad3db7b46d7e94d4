"""The launching machine's folder as its hosts read it; see ``serve`` for what is said on the connection."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from mlrun.allreduce.tcp import force_interface, parse_endpoint, plain, resolve, tcp_socket
from mlrun.data.admission import enter, receive_exactly
from mlrun.data.folder import DataError, Folder
from mlrun.data.listing import Entry, Listing
from mlrun.data.serve import DIGEST, FRAME
from mlrun.protocol import StoreWay

CONNECT_S = 3.0
STALL_S = 20.0
"""The longest that a connection may be silent in the middle of an answer."""
RECOVER_S = 30.0
"""How long a lost store is tried for, without a byte from it, before the run ends."""
_PAUSE_S = (0.05, 2.0)
_FIX = "see that the launching machine is awake and reachable from this host, then: mlrun resume"


class StoreFolder(Folder):
    """Files by name over the first of ``ways`` that leads to the run's store; a lost one is taken up again.

    Each process and each thread has a connection of its own.

    Raises:
        DataError: none leads there; says what was tried.
    """

    place = "the launching machine's data"

    def __init__(self, ways: Sequence[StoreWay], secret: str) -> None:
        self._ways, self._secret = list(ways), secret
        self._mine = threading.local()
        told = json.loads(self._get({"list": True}, "the list of files"))
        self.identity: str = told["identity"]
        self.listing = Listing([Entry(*entry) for entry in told["entries"]], told["folders"])

    def read(self, name: str) -> bytes:
        return self._get({"read": name}, name)

    def where(self, name: str) -> str:
        return f"{name} on the launching machine"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_mine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _mine=threading.local())

    def _get(self, question: dict[str, Any], what: str) -> bytes:
        """The whole answer, over as many connections as it takes."""
        content = bytearray()
        pause, before = _PAUSE_S[0], -1
        while True:
            if len(content) > before:
                deadline, before = time.monotonic() + RECOVER_S, len(content)
            try:
                self._connection().ask(question, content)
                return bytes(content)
            except DataError:
                raise
            except (OSError, EOFError, ValueError) as error:
                self._drop()
                if time.monotonic() > deadline:
                    raise DataError(
                        f"{what} doesn't come from the launching machine: {_reason(error)}; "
                        f"tried for {RECOVER_S:g} s",
                        _FIX,
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S[1])

    def _connection(self) -> _Connection:
        if getattr(self._mine, "connection", None) is None:
            self._mine.connection = self._open()
        connection: _Connection = self._mine.connection
        return connection

    def _open(self) -> _Connection:
        reasons = []
        for way in list(self._ways):
            try:
                opened = _Connection(way, bytes.fromhex(self._secret))
            except (OSError, EOFError) as error:
                reasons.append(f"{way.endpoint} {_reason(error)}")
            else:
                self._ways.sort(key=lambda other: other is not way)  # The next connection tries it first.
                return opened
        raise OSError("; ".join(reasons) or "it has no address that this host could reach")

    def _drop(self) -> None:
        if getattr(self._mine, "connection", None) is not None:
            self._mine.connection.close()
        self._mine.connection = None


class _Connection:
    """One authenticated connection to the store."""

    def __init__(self, way: StoreWay, key: bytes) -> None:
        family, where = resolve(*parse_endpoint(way.endpoint))
        self._socket = tcp_socket(family)
        try:
            if way.interface is not None:
                force_interface(self._socket, way.interface)
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(where)
            enter(self._socket, key)
            self._socket.settimeout(STALL_S)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, question: dict[str, Any], content: bytearray) -> None:
        """Append the rest of the answer to ``content``, each piece as soon as its digest is found right.

        Raises:
            DataError: the store has no such content any more.
            OSError, EOFError, ValueError: the connection is of no more use; what came stays.
        """
        asked = {**question, "offset": len(content)}
        self._socket.sendall(json.dumps(asked).encode() + b"\n")
        answer = json.loads(self._line())
        if "problem" in answer:
            fix = "leave the data alone while a run reads them, then: mlrun resume"
            raise DataError(f"{question.get('read')} on the launching machine: {answer['problem']}", fix)
        left = answer["size"]
        while left > 0:
            length = int.from_bytes(receive_exactly(self._socket, 4), "big")
            if not 0 < length <= min(FRAME, left):
                raise ValueError("broke the protocol")
            digest = receive_exactly(self._socket, DIGEST)
            piece = receive_exactly(self._socket, length)
            if hashlib.blake2b(piece, digest_size=DIGEST).digest() != digest:
                raise ValueError("what came was damaged on its way")
            content += piece
            left -= length

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            line += receive_exactly(self._socket, 1)
        return bytes(line)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "refused: nothing serves there any more, or a firewall says no"
    return "no answer" if isinstance(error, TimeoutError) else plain(error)
