"""Random collectives and faults on 2 to 8 ranks, for a bounded time: ``benchmarks/soak.py --minutes 10``.

Each phase starts a ring of processes with random settings and either checks every result, or breaks something
(a rank killed or stopped, a link cut, garbage in the stream) and checks that each other rank fails in time,
with an error that names the culprit. Exit code 1 at the first wrong thing; the seed repeats it.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mlrun.allreduce import engines
from mlrun.allreduce.communicator import Buffer, Communicator, CommunicatorError, Op, Work
from mlrun.allreduce.links import Listener, parse_endpoint
from mlrun.protocol import Plan

FAULTS = ("kill", "stop", "cut", "garbage")
TIMERS = {"heartbeat_s": 3.0, "progress_timeout_s": 6.0, "entry_timeout_s": 60.0}
FAULT_DEADLINE_S = 20.0
PHASE_DEADLINE_S = 120.0
TYPES = ("float32", "float64", "int32", "int64", "uint8")

Check = tuple[Work, Callable[[], bool]]


# A rank -------------------------------------------------------------------------------------------


def random_operation(comm: Communicator, rng: np.random.Generator) -> Check:
    """The same operation on all ranks, whose generators are in step; and how to tell that it was right."""
    n, r = comm.size, comm.rank
    kind = rng.choice(TYPES)
    count = int(
        rng.choice([0, 1, n, n + 1, 1009, 30_011, 500_009]) if rng.random() < 0.5 else rng.integers(0, 5000)
    )
    inputs = rng.integers(0, 3, (n, count)).astype(kind)
    root = int(rng.integers(0, n))
    mine = inputs[r].copy()
    match rng.integers(0, 6):
        case 0:
            work = comm.broadcast(Buffer.of(mine), root)
            return work, lambda: bool((mine == inputs[root]).all())
        case 1:
            gathered = np.empty(n * count, dtype=kind)
            work = comm.all_gather(Buffer.of(mine), Buffer.of(gathered))
            return work, lambda: bool((gathered == inputs.ravel()).all())
        case 2:
            whole = np.tile(mine, n)
            work = comm.reduce_scatter(Buffer.of(whole), Buffer.of(mine))
            return work, lambda: bool((mine == inputs.sum(0, dtype=kind)).all())
        case 3:
            source, target = np.tile(mine, n), np.empty(n * count, dtype=kind)
            work = comm.all_to_all(Buffer.of(source), Buffer.of(target))
            return work, lambda: bool((target == inputs.ravel()).all())
        case _:
            op = Op(int(rng.choice([Op.SUM, Op.MIN, Op.MAX])))
            want = {Op.SUM: inputs.sum(0, dtype=kind), Op.MIN: inputs.min(0), Op.MAX: inputs.max(0)}[op]
            work = comm.all_reduce(Buffer.of(mine), op)
            return work, lambda: bool((mine == want).all())


def shift(comm: Communicator, rng: np.random.Generator) -> list[Check]:
    """Everyone sends to the rank some places on, and receives as many places back."""
    n, r, distance, count = (
        comm.size,
        comm.rank,
        int(rng.integers(1, comm.size)),
        int(rng.integers(0, 100_000)),
    )
    got = np.empty(count, dtype=np.int32)
    sent = comm.send(Buffer.of(np.full(count, r, dtype=np.int32)), (r + distance) % n, distance)
    source = (r - distance) % n
    return [
        (sent, lambda: True),
        (comm.recv(Buffer.of(got), source, distance), lambda: bool((got == source).all())),
    ]


def play(comm: Communicator, seed: int, seconds: float) -> None:
    """Batches of operations in flight together, until rank 0 says it's time."""
    rng = np.random.default_rng(seed)
    group = comm.split([int(rank) for rank in rng.permutation(comm.size)])
    assert group is not None
    end = time.monotonic() + seconds
    go_on = np.ones(1, dtype=np.uint8)
    done = 0
    while go_on[0]:
        checks = [
            random_operation(comm if rng.random() < 0.7 else group, rng) for _ in range(rng.integers(1, 9))
        ]
        checks += shift(comm, rng)
        for work, right in checks:
            work.wait()
            if not right():
                raise AssertionError(f"a wrong result in batch {done}")
        done += 1
        if done == 3:
            print(json.dumps("running"), flush=True)
        go_on[0] = done < 3 or time.monotonic() < end
        comm.broadcast(Buffer.of(go_on), 0).wait()


def be_rank(rank: int) -> None:
    with Listener(["127.0.0.1"]) as listener:
        print(json.dumps(listener.endpoints), flush=True)
        order = json.loads(sys.stdin.readline())
        hosts = [f"host-{each}" for each in range(len(order["endpoints"]))]
        plan = Plan(0, "ring", order["endpoints"], hosts, order["settings"])
        try:
            comm = engines.connect(plan, rank, listener, order["secret"])
            play(comm, order["seed"], order["seconds"])
            comm.close()
            print(json.dumps(["ok", ""]), flush=True)
        except (CommunicatorError, AssertionError) as error:
            print(json.dumps([type(error).__name__, str(error)]), flush=True)


# The soak -----------------------------------------------------------------------------------------


class Relay:
    """Sits on the cable from one rank to the next, and breaks it when told."""

    def __init__(self, target: str) -> None:
        self._target = parse_endpoint(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.fault: str | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            inside, _ = self._listener.accept()
            threading.Thread(target=self._carry, args=(inside,), daemon=True).start()

    def _carry(self, inside: socket.socket) -> None:
        with inside, socket.create_connection(self._target) as outside:
            other = {inside: outside, outside: inside}
            while True:
                for sock in select.select([inside, outside], [], [])[0]:
                    try:
                        data = sock.recv(65536)
                        if not data or self.fault == "cut":
                            return
                        if self.fault == "garbage" and sock is inside:
                            data = data[: len(data) // 2] + secrets.token_bytes(64) + data[len(data) // 2 :]
                            self.fault = None
                        other[sock].sendall(data)
                    except OSError:
                        return


class Phase:
    """One ring of processes."""

    def __init__(self, rng: random.Random, fault: str | None, seconds: float) -> None:
        self.size = rng.randint(2, 8)
        self.fault, self.victim = fault, rng.randrange(self.size)
        if self.size == 2 and fault in ("cut", "garbage"):
            self.victim = 0  # the only rank of two that dials
        checked = rng.random() < 0.3 or fault == "garbage"  # without a checksum, garbage may pass for payload
        self.settings = {**TIMERS, "links": rng.randint(1, 3), "checksum": checked}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(self.size)
        ]
        endpoints = [self._line(rank) for rank in range(self.size)]
        self.relay = Relay(endpoints[(self.victim + 1) % self.size][0])
        secret, seed = secrets.token_hex(32), rng.getrandbits(32)
        for rank, process in enumerate(self.ranks):
            seen = list(endpoints)
            if rank == self.victim and fault in ("cut", "garbage"):
                seen[(rank + 1) % self.size] = [self.relay.endpoint]
            order = {"endpoints": seen, "secret": secret, "settings": self.settings, "seed": seed}
            order["seconds"] = 3600.0 if fault else seconds
            assert process.stdin is not None
            print(json.dumps(order), file=process.stdin, flush=True)

    def run(self) -> None:
        """Raises AssertionError with what went wrong."""
        others = [r for r in range(self.size) if self.fault not in ("kill", "stop") or r != self.victim]
        for rank in range(self.size):
            said = self._line(rank)
            assert said == "running" or self.fault is None, f"rank {rank}: {said}"
        if self.fault == "kill":
            self.ranks[self.victim].kill()
        elif self.fault == "stop":
            self.ranks[self.victim].send_signal(signal.SIGSTOP)
        self.relay.fault = self.fault
        start = time.monotonic()
        for rank in others:
            kind, text = self._line(rank)
            assert (kind == "ok") == (self.fault is None), f"rank {rank} ended with {kind}: {text}"
            assert kind != "AssertionError", f"rank {rank}: {text}"
            if self.fault in ("kill", "stop"):
                assert f"rank {self.victim} " in text, f"rank {rank} doesn't name rank {self.victim}: {text}"
        took = time.monotonic() - start
        assert self.fault is None or took < FAULT_DEADLINE_S, f"errors took {took:.1f} s"

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()

    def _line(self, rank: int) -> Any:
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        assert select.select([stdout], [], [], PHASE_DEADLINE_S)[0], f"rank {rank} stalls"
        line = stdout.readline()
        assert line, f"rank {rank} died with exit code {self.ranks[rank].wait()}"
        return json.loads(line)


def soak(seed: int, seconds: float, phase_seconds: float) -> int:
    rng, end, phases = random.Random(seed), time.monotonic() + seconds, 0
    print(f"seed {seed}", flush=True)
    while time.monotonic() < end or phases < 2 * len(FAULTS):
        fault = FAULTS[phases // 2 % len(FAULTS)] if phases % 2 else None
        phase = Phase(rng, fault, phase_seconds)
        what = f"phase {phases}: {phase.size} ranks, {phase.settings}, fault {fault} at rank {phase.victim}"
        try:
            phase.run()
        except AssertionError as error:
            print(f"{what}: FAILED: {error}", flush=True)
            return 1
        finally:
            phase.close()
        print(f"{what}: right", flush=True)
        phases += 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--phase-seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        be_rank(given.rank)
    else:
        sys.exit(soak(given.seed, 60 * given.minutes, given.phase_seconds))
