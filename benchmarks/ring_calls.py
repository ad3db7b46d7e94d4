"""What a call on the ring costs its caller, and how soon an abort frees all: ``benchmarks/ring_calls.py``.

The ranks are threads of this process, joined over loopback sockets.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mlrun.allreduce.communicator import AbortedError, Buffer
from mlrun.allreduce.links import RingLinks
from mlrun.allreduce.ring import RingCommunicator

RANKS = 4
CALLS = 30
ROUNDS = 20


def connect(size: int) -> list[RingCommunicator]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        edges = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(size)]
    links = [RingLinks([edges[rank][0]], [edges[rank - 1][1]]) for rank in range(size)]
    hosts = ["localhost"] * size
    return [RingCommunicator(rank, size, hosts, each) for rank, each in enumerate(links)]


def queueing(ring: RingCommunicator) -> list[float]:
    """Seconds of each call that only queues an all-reduce of 256 KB."""
    buffers = [Buffer.of(np.ones(1 << 16, np.float32)) for _ in range(CALLS)]
    took = []
    for _ in range(ROUNDS):
        works = []
        for buffer in buffers:
            start = time.perf_counter()
            works.append(ring.all_reduce(buffer))
            took.append(time.perf_counter() - start)
        for work in works:
            work.wait()
    return took


def freed_by_abort() -> float:
    """Seconds from ``abort()`` on one rank until the last waiter is free, in a large all-reduce."""
    rings = connect(RANKS)
    waiting = threading.Barrier(RANKS)
    aborted_at = 0.0

    def wait_for_it(ring: RingCommunicator) -> float:
        nonlocal aborted_at
        work = ring.all_reduce(Buffer.of(np.ones(25_000_000, np.float32)))
        waiting.wait()
        if ring.rank == 0:
            aborted_at = time.perf_counter()
            ring.abort("a measurement")
        try:
            work.wait()
        except AbortedError:
            return time.perf_counter()
        raise SystemExit("the all-reduce ended before the abort: nothing measured")

    with ThreadPoolExecutor(RANKS) as threads:
        freed_at = list(threads.map(wait_for_it, rings))
    return max(freed_at) - aborted_at


def main() -> None:
    rings = connect(RANKS)
    with ThreadPoolExecutor(RANKS) as threads:
        took = [each for rank in threads.map(queueing, rings) for each in rank]
        list(threads.map(lambda ring: ring.close(), rings))
    print(f"queueing an all-reduce of 256 KB: median {statistics.median(took) * 1e6:.1f} µs")
    freed = [freed_by_abort() for _ in range(5)]
    print(f"abort until all {RANKS} ranks are free: {', '.join(f'{each * 1e3:.1f}' for each in freed)} ms")


if __name__ == "__main__":
    main()
