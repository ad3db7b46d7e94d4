"""Ranks for tests of the ring engine: threads of this process, joined over loopback sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from mlrun.allreduce.links import RingLinks
from mlrun.allreduce.ring import RingCommunicator

DEADLINE_S = 60.0


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


def ring_links(size: int, sockets: int = 1) -> list[RingLinks]:
    """Per rank: ``sockets`` connections to each neighbour."""
    edges = [[socket_pair() for _ in range(sockets)] for _ in range(size if size > 2 else size - 1)]
    if size == 1:
        return [RingLinks()]
    if size == 2:
        return [RingLinks([pair[0] for pair in edges[0]]), RingLinks([pair[1] for pair in edges[0]])]
    return [
        RingLinks([pair[0] for pair in edges[rank]], [pair[1] for pair in edges[rank - 1]])
        for rank in range(size)
    ]


def make_ring(size: int, sockets: int = 1, **settings: Any) -> list[RingCommunicator]:
    hosts = [f"host{rank}" for rank in range(size)]
    return [
        RingCommunicator(rank, size, hosts, links, settings=settings)
        for rank, links in enumerate(ring_links(size, sockets))
    ]


def on_each(ring: list[RingCommunicator], work: Callable[[RingCommunicator], Any]) -> list[Any]:
    """``work`` on every rank at once; per rank its result, or the exception that it raised."""
    results: list[Any] = [None] * len(ring)

    def one(communicator: RingCommunicator) -> None:
        try:
            results[communicator.rank] = work(communicator)
        except Exception as error:
            results[communicator.rank] = error

    threads = [threading.Thread(target=one, args=[each], daemon=True) for each in ring]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def results_of(ring: list[RingCommunicator], work: Callable[[RingCommunicator], Any]) -> list[Any]:
    """Like ``on_each``, where no rank may fail."""
    results = on_each(ring, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
