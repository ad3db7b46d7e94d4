"""One rank in a process of its own: ``rank_main.py ENGINE SCENARIO PORT [RANK]``; mpirun gives the rank.

Talks JSON lines with the test on that port: says [rank, endpoints], hears [all endpoints, secret, settings],
plays the scenario, says how it ended, and stays until the test has heard all ranks. A scenario is a function
of this file, or module:function; what it returns is told.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading

import numpy as np

from mlrun.allreduce import engines
from mlrun.allreduce.communicator import Buffer, Communicator, CommunicatorError, DType, Op
from mlrun.allreduce.links import Listener
from mlrun.errors import RequestError
from mlrun.protocol import Plan


def collectives(comm: Communicator) -> None:
    n, r = comm.size, comm.rank
    for kind in ("float32", "float64", "int8", "uint8", "int32", "int64"):
        for count in (0, 1, n - 1, n + 1, 1009):
            inputs = np.random.default_rng(count).integers(1, 3, (n, count)).astype(kind)
            wanted = {
                Op.SUM: inputs.sum(0),
                Op.MIN: inputs.min(0, initial=9),
                Op.MAX: inputs.max(0, initial=0),
                Op.PRODUCT: inputs.prod(0),
                Op.AVERAGE: inputs.sum(0) / n if "float" in kind else inputs.sum(0) // n,
            }
            for op, want in wanted.items():
                mine = inputs[r].copy()
                comm.all_reduce(Buffer.of(mine), op).wait()
                np.testing.assert_allclose(mine, want, rtol=1e-6, err_msg=f"{kind} {op.name} {count}")
    truth = np.array([True, r == 0, False])
    comm.all_reduce(Buffer.of(truth), Op.MAX).wait()
    assert truth.tolist() == [True, True, False]


def moves(comm: Communicator) -> None:
    n, r = comm.size, comm.rank
    value = np.full(7, r, dtype=np.int64)
    comm.broadcast(Buffer.of(value), n - 1).wait()
    assert (value == n - 1).all()
    raw = np.full(6, r, dtype=np.uint8)
    gathered = np.empty(6 * n, dtype=np.uint8)
    comm.all_gather(Buffer.of(raw, DType.BFLOAT16), Buffer.of(gathered, DType.BFLOAT16)).wait()
    assert (gathered.reshape(n, 6) == np.arange(n)[:, None]).all()
    part, whole = np.empty(3, dtype=np.float32), np.arange(3 * n, dtype=np.float32)
    comm.reduce_scatter(Buffer.of(whole), Buffer.of(part)).wait()
    assert (part == n * np.arange(3 * r, 3 * r + 3)).all()
    assert (whole == np.arange(3 * n)).all()
    source = np.repeat(np.arange(n), np.arange(n) + 1) + 100 * r
    target = np.empty(n * (r + 1), dtype=source.dtype)
    comm.all_to_all(Buffer.of(source), Buffer.of(target), [i + 1 for i in range(n)], [r + 1] * n).wait()
    assert (target == np.repeat(100 * np.arange(n) + r, r + 1)).all()


def point_to_point(comm: Communicator) -> None:
    """Everyone sends much to everyone before anyone receives, the tags in the other order."""
    others = [p for p in range(comm.size) if p != comm.rank]
    messages = [(p, tag, np.full(200_000, 10 * comm.rank + tag)) for p in others for tag in (0, 1)]
    works = [comm.send(Buffer.of(m), p, tag) for p, tag, m in messages]
    for p in others:
        for tag in (1, 0):
            got = np.empty(200_000, dtype=np.int64)
            comm.recv(Buffer.of(got), p, tag).wait()
            assert (got == 10 * p + tag).all()
    for work in works:
        work.wait()


def groups(comm: Communicator) -> None:
    ranks = list(range(comm.size))[::-1][: comm.size - 1]
    group = comm.split(ranks)
    assert (group is None) == (comm.rank == 0)
    if group is not None:
        assert ranks[group.rank] == comm.rank
        value = np.array([comm.rank], dtype=np.int32)
        group.all_reduce(Buffer.of(value)).wait()
        assert value[0] == sum(ranks)
        group.close()
    again = comm.split(range(comm.size))
    assert again is not None
    works = [(g.barrier(), g.barrier()) for g in ((comm, again) if comm.rank % 2 else (again, comm))]
    for pair in works:
        for work in pair:
            work.wait()
            assert work.done()


def in_flight(comm: Communicator) -> None:
    values = [np.full(5000, i + comm.rank, dtype=np.float64) for i in range(20)]
    works = [comm.all_reduce(Buffer.of(v), name=f"bucket {i}") for i, v in enumerate(values)]
    for i, (work, value) in enumerate(zip(works, values, strict=True)):
        work.wait()
        assert (value == comm.size * i + sum(range(comm.size))).all()
        times = work.times()
        assert times is not None
        assert times[0] <= times[1]


def contract(comm: Communicator) -> None:
    for part in (collectives, moves, point_to_point, groups, in_flight):
        part(comm)


def contract_of_horovod(comm: Communicator) -> None:
    """What is left of it: no send and recv, and no groups but that of all ranks."""
    for part in (collectives, moves, in_flight):
        part(comm)
    again = comm.split(range(comm.size))
    assert again is not None
    works = [g.barrier() for g in ((comm, again) if comm.rank % 2 else (again, comm))]
    for work in works:
        work.wait()
    for refused in (lambda: comm.split([0]), lambda: comm.send(Buffer.of(np.zeros(1)), 0)):
        said = "taken"
        try:
            refused()
        except CommunicatorError as error:
            said = str(error)
        assert "use ring" in said, said


def aborted(comm: Communicator) -> None:
    comm.barrier().wait()
    if comm.rank == comm.size - 1:
        threading.Timer(0.2, comm.abort, ["out of patience"]).start()
    comm.recv(Buffer.of(np.empty(4)), (comm.rank + 1) % comm.size, 7).wait()


def killed(comm: Communicator) -> None:
    comm.barrier().wait()
    if comm.rank == comm.size - 1:
        os._exit(9)
    comm.recv(Buffer.of(np.empty(4)), (comm.rank + 1) % comm.size, 7).wait()


def killed_in_a_reduction(comm: Communicator) -> None:
    comm.barrier().wait()
    if comm.rank == comm.size - 1:
        os._exit(9)
    comm.all_reduce(Buffer.of(np.zeros(4))).wait()


def main(engine: str, scenario: str, port: int, rank: int) -> None:
    control = socket.create_connection(("127.0.0.1", port))
    with Listener(["127.0.0.1"]) as listener, control.makefile("rw") as lines:
        print(json.dumps([rank, listener.endpoints]), file=lines, flush=True)
        endpoints, secret, settings = json.loads(lines.readline())
        plan = Plan(0, engine, endpoints, ["here"] * len(endpoints), settings)
        ended: list[object] = ["ok", ""]
        try:
            comm = engines.connect(plan, rank, listener, secret)
            module, _, function = scenario.rpartition(":")
            play = getattr(importlib.import_module(module), function) if module else globals()[function]
            ended[1] = play(comm) or ""
            comm.close()
        except (CommunicatorError, RequestError, AssertionError) as error:
            ended = [type(error).__name__, str(error)]
        print(json.dumps(ended), file=lines, flush=True)
        lines.readline()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]), int(os.environ.get("OMPI_COMM_WORLD_RANK") or sys.argv[4]))
