"""One rank of one engine under test: ``python -m mlrun.bench.rank ENGINE SOCKET [RANK]``.

Talks JSON lines with the benchmark over a Unix socket; between rounds it sleeps in a read, so that engines
which wait their turn cost nothing. The end of that socket ends the process, wherever it is.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from mlrun.allreduce.links import Listener
from mlrun.bench.contestants import CONTESTANTS
from mlrun.bench.timing import timed_round
from mlrun.protocol import Plan


class Control:
    """The line to the benchmark."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._socket.makefile():
                self._lines.put(json.loads(line))
        finally:
            os._exit(1)

    def receive(self) -> Any:
        return self._lines.get()

    def requests(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self._lines.get()

    def send(self, message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


def main(engine: str, path: str, rank: int) -> None:
    control = Control(path)
    try:
        with Listener(["127.0.0.1"]) as listener:
            control.send({"rank": rank, "endpoints": listener.endpoints})
            endpoints, secret, settings = control.receive()
            plan = Plan(0, engine, endpoints, ["localhost"] * len(endpoints), settings)
            prepare = CONTESTANTS[engine](plan, rank, listener, secret)
        control.send({"ready": True})
        for request in control.requests():
            control.send(timed_round(prepare, rank, len(endpoints), engine != "limit", **request))
    except Exception as error:
        control.send({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)


if __name__ == "__main__":
    place = os.environ.get("OMPI_COMM_WORLD_RANK")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3] if place is None else place))
