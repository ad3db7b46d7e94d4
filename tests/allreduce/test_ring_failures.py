"""How the ring fails: the first cause, on every rank, in time."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ring_ranks import make_ring, on_each, results_of, ring_links, socket_pair

from mlrun.allreduce.communicator import (
    AbortedError,
    Buffer,
    CommunicatorError,
    DeadlineError,
    MismatchError,
    Op,
    PeerLostError,
)
from mlrun.allreduce.links import RingLinks
from mlrun.allreduce.ring import RingCommunicator


def ones(count: int) -> Buffer:
    return Buffer.of(np.ones(count, np.float32))


@pytest.mark.parametrize(
    ("odd_one", "parts"),
    [
        (lambda ring: ring.broadcast(ones(10), 0, name="weights"), ["broadcast #0 'weights'", "root 0"]),
        (lambda ring: ring.all_reduce(ones(11)), ["float32 x 11"]),
        (lambda ring: ring.all_reduce(ones(300_000)), ["float32 x 300000"]),
        (lambda ring: ring.all_reduce(ones(10), Op.MAX), ["max"]),
        (lambda ring: ring.all_reduce(Buffer.of(np.ones(10))), ["float64 x 10"]),
        (lambda ring: ring.barrier(), ["barrier #0"]),
    ],
)
def test_a_mismatch_names_both_ranks_and_both_calls(odd_one: Any, parts: list[str]) -> None:
    def work(ring: RingCommunicator) -> None:
        (odd_one(ring) if ring.rank == 2 else ring.all_reduce(ones(10), name="grads")).wait()

    for result in on_each(make_ring(4), work):
        assert isinstance(result, MismatchError)
        for part in ["rank 2 (host2)", "all_reduce #0 'grads' (float32 x 10, sum)", *parts]:
            assert part in str(result)


def test_messages_of_different_length_are_a_mismatch() -> None:
    def work(ring: RingCommunicator) -> None:
        (ring.send(ones(10), 1) if ring.rank == 0 else ring.recv(ones(11), 0)).wait()

    for result in on_each(make_ring(2), work):
        assert isinstance(result, MismatchError)


def test_ranks_that_split_differently_are_a_mismatch() -> None:
    for result in on_each(make_ring(3), lambda ring: ring.split([0, 1] if ring.rank == 0 else [0, 2])):
        assert isinstance(result, MismatchError)
        assert "ranks [0, 1]" in str(result)


@pytest.mark.parametrize("count", [10, 300_000])
def test_a_rank_that_stays_away_is_named(count: int) -> None:
    def work(ring: RingCommunicator) -> None:
        if ring.rank != 2:
            ring.all_reduce(ones(count), name="grads").wait()

    results = on_each(make_ring(4, entry_timeout_s=0.5), work)
    for result in (results[0], results[1], results[3]):
        assert isinstance(result, DeadlineError)
        assert "0.5 s in all_reduce #0 'grads'" in str(result)
        assert "for rank 2 (host2) to enter it" in str(result)


def test_abort_frees_every_waiter_and_tells_the_reason() -> None:
    ring = make_ring(4)
    waiting = threading.Barrier(4)

    def work(communicator: RingCommunicator) -> None:
        if communicator.rank == 3:
            waiting.wait()
            communicator.abort("the optimizer exploded")
            communicator.barrier().wait()
        else:
            collective = communicator.all_reduce(ones(2_000_000))
            waiting.wait()
            collective.wait()

    for result in on_each(ring, work):
        assert isinstance(result, AbortedError)
        assert "rank 3 (host3) aborted: the optimizer exploded" in str(result)


def test_a_rank_that_closed_is_named() -> None:
    def work(ring: RingCommunicator) -> None:
        if ring.rank == 1:
            ring.close()
            ring.close()
        else:
            ring.barrier().wait()

    results = on_each(make_ring(3), work)
    for result in (results[0], results[2]):
        assert isinstance(result, PeerLostError)
        assert "rank 1 (host1) closed" in str(result)


def test_closing_waits_for_those_who_still_pass_through() -> None:
    """Ranks 1, 3 and 5 have nothing to do and leave at once; what the others send goes through them."""
    links = ring_links(6, sockets=2)

    def work(rank: int) -> float:
        ring = RingCommunicator(rank, 6, [f"host{each}" for each in range(6)], links[rank])
        group = ring.split([0, 2, 4])
        data = np.full(1000, 1.0, np.float32)
        if group is not None:
            for _ in range(200):
                data.fill(1)
                group.all_reduce(Buffer.of(data)).wait()
        ring.close()
        return float(data[-1])

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(6))) == [3, 1, 3, 1, 3, 1]


def test_nothing_goes_after_a_close() -> None:
    ring = make_ring(4)
    results_of(ring, lambda communicator: communicator.all_reduce(ones(100_000)).wait())
    results_of(ring, lambda communicator: communicator.close())
    for communicator in ring:
        with pytest.raises(CommunicatorError, match="closed"):
            communicator.barrier()


class Victims:
    """Rank 0 is here; the others are processes."""

    def __init__(self, size: int, **settings: Any) -> None:
        links = ring_links(size)
        hosts = [f"host{rank}" for rank in range(size)]
        self.processes = []
        for rank in range(1, size):
            fds = [[sock.fileno() for sock in side] for side in (links[rank].next, links[rank].previous)]
            order = {"rank": rank, "size": size, "links": fds, "settings": settings}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("ring_victim.py")), json.dumps(order)],
                    pass_fds=[fd for side in fds for fd in side],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            links[rank].close()
        # The heartbeats start together, however long the processes took to start.
        for process in self.processes:
            self._expect(process, "ready")
        for process in self.processes:
            assert process.stdin is not None
            print("go", file=process.stdin, flush=True)
        self.ring = RingCommunicator(0, size, hosts, links[0], settings=settings)
        self.result: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        for process in self.processes:
            self._expect(process, "running")

    @staticmethod
    def _expect(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"

    def _run(self) -> None:
        data = np.ones(1_000_000, np.float32)
        try:
            for step in range(10_000_000):
                data.fill(1)
                self.ring.all_reduce(Buffer.of(data), name=f"step {step}").wait()
        except CommunicatorError as error:
            self.result = [type(error).__name__, str(error)]

    def results(self, except_rank: int) -> list[list[str]]:
        """[class, message] of every rank but one."""
        self.thread.join(20)
        found = [self.result]
        for rank, process in enumerate(self.processes, 1):
            if rank != except_rank:
                found.append(json.loads(process.communicate(timeout=20)[0]))
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def four() -> Iterator[Victims]:
    victims = Victims(4, heartbeat_s=1.0)
    yield victims
    victims.end()


def test_a_killed_rank_is_named_by_all(four: Victims) -> None:
    four.processes[1].send_signal(signal.SIGKILL)
    for kind, text in four.results(except_rank=2):
        assert kind == "PeerLostError"
        assert "lost its link to rank 2 (host2)" in text
        assert "'step " in text


def test_a_stopped_rank_is_named_by_all(four: Victims) -> None:
    four.processes[1].send_signal(signal.SIGSTOP)
    for kind, text in four.results(except_rank=2):
        assert kind == "PeerLostError"
        assert "has heard nothing from rank 2 (host2) for 1 s" in text


class Relay:
    """Passes the bytes of one connection on, until told to do otherwise."""

    def __init__(self) -> None:
        self.one, self._a = socket_pair()
        self.other, self._b = socket_pair()
        self.fault: bytes | None = None
        self.dead = False
        self._passed = 0
        for source, target in ((self._a, self._b), (self._b, self._a)):
            threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(10_000):
                self._passed += len(data)
                if self.dead:
                    continue
                if self.fault is not None and self._passed > 1_000_000:
                    if not self.fault:
                        break
                    data = bytes(
                        byte ^ flip for byte, flip in zip(data, self.fault * len(data), strict=False)
                    )
                target.sendall(data)
        except OSError:
            pass
        for end in (self._a, self._b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def relayed_ring(fault: bytes, **settings: Any) -> list[RingCommunicator]:
    """Three ranks, with a fault in the connection of ranks 0 and 1 after a megabyte."""
    links = ring_links(3)
    relay = Relay()
    relay.fault = fault
    links[0] = RingLinks([relay.one], links[0].previous)
    links[1] = RingLinks(links[1].next, [relay.other])
    hosts = ["host0", "host1", "host2"]
    return [RingCommunicator(rank, 3, hosts, each, settings=settings) for rank, each in enumerate(links)]


def reduce_until_it_fails(ring: RingCommunicator) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ring.all_reduce(ones(300_000)).wait()


def test_a_dead_second_cable_is_noticed() -> None:
    links = ring_links(2)
    relay = Relay()
    ring = [
        RingCommunicator(
            rank, 2, ["host0", "host1"], RingLinks([*links[rank].next, end]), settings={"heartbeat_s": 1.0}
        )
        for rank, end in enumerate((relay.one, relay.other))
    ]

    def work(communicator: RingCommunicator) -> None:
        communicator.all_reduce(ones(2_000_000)).wait()
        if communicator.rank == 0:
            relay.dead = True
        communicator.recv(ones(1), 1 - communicator.rank).wait(30)

    for result in on_each(ring, work):
        assert isinstance(result, PeerLostError)
        assert "has heard nothing from rank" in str(result)


def test_a_link_cut_within_a_segment_is_noticed() -> None:
    for result in on_each(relayed_ring(b""), reduce_until_it_fails):
        assert isinstance(result, PeerLostError)
        assert "rank 0 (host0)" in str(result)
        assert "rank 1 (host1)" in str(result)


def test_garbage_is_noticed() -> None:
    for result in on_each(relayed_ring(b"\x5a"), reduce_until_it_fails):
        assert isinstance(result, PeerLostError)


def test_a_flipped_bit_is_noticed_with_checksums() -> None:
    one_in_a_while = bytes(9_999) + b"\x01"
    for result in on_each(relayed_ring(one_in_a_while, checksum=True), reduce_until_it_fails):
        assert isinstance(result, PeerLostError)
