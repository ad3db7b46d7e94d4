"""One rank's side of each engine under test: a call that does one all-reduce, as fast as the engine can.

gloo, MPI and Horovod are called as their own users call them, not through our Communicator, so that our
Python isn't counted against them.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, DType
from mlrun.allreduce.links import Listener, connect_ring
from mlrun.protocol import Plan

Call = Callable[[], None]
Prepare = Callable[[np.ndarray[Any, Any], DType], Call]
"""Given the memory to sum over all ranks, in place."""

CONNECT_S = 60.0
WIRE = {None: None, "fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
LIMIT_SEGMENT = 256 << 10


def ring(plan: Plan, rank: int, listener: Listener, secret: str) -> Prepare:
    from mlrun.allreduce import ring as engine  # noqa: PLC0415

    communicator = engine.from_plan(plan, rank, listener, secret)
    return over(communicator, WIRE[plan.settings.get("wire_dtype")])


def over(communicator: Communicator, wire_dtype: DType | None = None) -> Prepare:
    """The calls of a Communicator."""

    def prepare(array: np.ndarray[Any, Any], dtype: DType) -> Call:
        buffer = Buffer.of(array, dtype)
        return lambda: communicator.all_reduce(buffer, wire_dtype=wire_dtype).wait()

    return prepare


def limit(plan: Plan, rank: int, listener: Listener, secret: str) -> Prepare:
    """Each rank's bytes and additions of a ring all-reduce over plain sockets, shared by all links."""
    from mlrun.bench import _limit  # noqa: PLC0415

    size = len(plan.hosts)
    links = connect_ring(
        listener,
        rank,
        plan.endpoints,
        plan.hosts,
        secret,
        generation=0,
        links=plan.settings.get("links") or 1,
        timeout_s=CONNECT_S,
    )
    sockets = [*links.next, *links.previous]

    def prepare(array: np.ndarray[Any, Any], dtype: DType) -> Call:
        if dtype is not DType.FLOAT32:
            raise ValueError("the raw copy adds float32 only")
        added = array.nbytes * (size - 1) // size // len(sockets) // 4 * 4
        return lambda: _limit.raw_copy(
            fds=[sock.fileno() for sock in sockets],
            address=array.ctypes.data,
            size=array.nbytes,
            bytes=2 * added,
            added=added,
            segment=LIMIT_SEGMENT,
        )

    return prepare


def gloo(plan: Plan, rank: int, listener: Listener, secret: str) -> Prepare:
    import torch  # noqa: PLC0415

    dist: Any = torch.distributed
    address, _, port = plan.endpoints[0][0].rpartition(":")
    wait = datetime.timedelta(seconds=CONNECT_S)
    descriptor = os.dup(listener.sockets[0].fileno()) if rank == 0 else None
    store = dist.TCPStore(
        address, int(port), None, rank == 0, wait, wait_for_workers=False, master_listen_fd=descriptor
    )
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = wait
    group = dist.ProcessGroupGloo(store, rank, len(plan.hosts), options)

    def prepare(array: np.ndarray[Any, Any], dtype: DType) -> Call:
        tensor = torch.from_numpy(array).view(getattr(torch, dtype.name.lower()))
        return lambda: group.allreduce([tensor]).wait()

    return prepare


def mpi(plan: Plan, rank: int, listener: Listener, secret: str) -> Prepare:
    from mpi4py import MPI  # noqa: PLC0415

    kinds = {
        DType.FLOAT32: MPI.FLOAT,
        DType.FLOAT64: MPI.DOUBLE,
        DType.INT8: MPI.INT8_T,
        DType.UINT8: MPI.UINT8_T,
        DType.INT32: MPI.INT32_T,
        DType.INT64: MPI.INT64_T,
    }

    def prepare(array: np.ndarray[Any, Any], dtype: DType) -> Call:
        if dtype not in kinds:
            raise ValueError(f"MPI has no type {dtype.name}")
        message = [array, kinds[dtype]]
        return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, message)

    return prepare


def horovod(plan: Plan, rank: int, listener: Listener, secret: str) -> Prepare:
    from mlrun.allreduce import horovod as engine  # noqa: PLC0415

    communicator = engine.from_plan(plan, rank, listener, secret)
    import horovod.torch as hvd  # noqa: PLC0415
    import torch  # noqa: PLC0415

    def prepare(array: np.ndarray[Any, Any], dtype: DType) -> Call:
        if dtype in (DType.BFLOAT16, DType.INT8, DType.UINT8, DType.BOOL):
            raise ValueError(f"Horovod doesn't reduce {dtype.name}")
        tensor = torch.from_numpy(array)

        def call() -> None:
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"payload of {communicator.size}")

        return call

    return prepare


CONTESTANTS = {
    "ring": ring,
    "limit": limit,
    "gloo": gloo,
    "mpi": mpi,
    "mpi-shm": mpi,
    "horovod": horovod,
}
