"""The Communicator over Open MPI, through mpi4py.

Workers aren't started by mpirun. Rank 0 starts an mpirun of its own whose processes do nothing but hand the
environment that makes them ranks to the workers (``mpi_place``), who join MPI in their stead.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlrun.allreduce import mpirun
from mlrun.allreduce.blocking import NUMPY, BlockingCommunicator, Call, bytes_of
from mlrun.allreduce.communicator import Buffer, Communicator, CommunicatorError, DType, Op
from mlrun.allreduce.links import Listener
from mlrun.allreduce.side_channel import SideChannel
from mlrun.errors import RequestError
from mlrun.protocol import Plan

START_TIMEOUT_S = 60.0

try:
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError where it finds no MPI library
    raise RequestError(
        f"allreduce.engine mpi needs mpi4py and Open MPI, which aren't installed here ({error})",
        fix=mpirun.INSTALL,
    ) from error

_TYPES = {
    DType.FLOAT32: MPI.FLOAT,
    DType.FLOAT64: MPI.DOUBLE,
    DType.INT8: MPI.INT8_T,
    DType.UINT8: MPI.UINT8_T,
    DType.INT32: MPI.INT32_T,
    DType.INT64: MPI.INT64_T,
    DType.BOOL: MPI.C_BOOL,
}
_OPS = {Op.SUM: MPI.SUM, Op.AVERAGE: MPI.SUM, Op.MIN: MPI.MIN, Op.MAX: MPI.MAX, Op.PRODUCT: MPI.PROD}


def from_plan(plan: Plan, rank: int, listener: Listener, secret: str) -> MpiCommunicator:
    """Join the group of ``plan``: ranks of one machine, or workers that an mpirun started anyhow.

    Raises:
        LinkError: a neighbour is missing.
        RequestError: several machines, a wire_dtype, or no mpirun.
        CommunicatorError: mpirun said no.
    """
    if plan.settings.get("wire_dtype"):
        raise RequestError("allreduce.wire_dtype needs engine: ring", fix="leave out wire_dtype")
    under_mpirun = "OMPI_COMM_WORLD_SIZE" in os.environ
    if not under_mpirun and len(set(plan.hosts)) > 1:
        raise RequestError("engine mpi joins the workers of one machine only", fix="use engine: ring")
    channel = SideChannel(plan, rank, listener, secret)
    places: Places | None = None
    if not under_mpirun:
        if rank == 0:
            places = Places(len(plan.hosts))
        own = json.loads(channel.share(json.dumps(places.environments) if places is not None else None))[rank]
        os.environ.update(own)
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MpiCommunicator(MPI.COMM_WORLD.Split(0, rank), plan.hosts, channel=channel, places=places)


class Places:
    """An mpirun whose processes stand in for the workers until the run is over."""

    def __init__(self, size: int) -> None:
        command = mpirun.command(size)
        self._folder = Path(tempfile.mkdtemp(prefix="mlrun-mpi-"))
        self._log = self._folder / "log"
        place = [sys.executable, str(Path(__file__).with_name("mpi_place.py")), str(self._folder)]
        # The system gives up the lock with our death, however we die; a place that gets it leaves.
        self._alive = (self._folder / "alive").open("w")
        fcntl.lockf(self._alive, fcntl.LOCK_EX)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *place], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.environments = self._collect(size)
        except BaseException:
            self.close()
            raise

    def _collect(self, size: int) -> list[dict[str, str]]:
        files = [self._folder / str(rank) for rank in range(size)]
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(file.exists() for file in files):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace").strip() or "nothing"
                raise CommunicatorError(f"mpirun didn't start {size} processes; it said: {said}")
            time.sleep(0.02)
        return [json.loads(file.read_text()) for file in files]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._alive.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class MpiCommunicator(BlockingCommunicator):
    """Made by ``from_plan``. No float16 and bfloat16 sums: MPI has no such types.

    A rank that waits in a collective keeps a core busy, as MPI does.
    """

    engine = "mpi"

    def __init__(
        self,
        comm: Any,
        hosts: Sequence[str],
        *,
        channel: SideChannel | None = None,
        places: Places | None = None,
        parent: MpiCommunicator | None = None,
    ) -> None:
        self._comm, self._places = comm, places
        super().__init__(comm.Get_rank(), hosts, channel, parent)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        inside = self.rank in ranks
        color, key = (0, list(ranks).index(self.rank)) if inside else (MPI.UNDEFINED, 0)
        made: list[Any] = []
        self._enqueue(lambda: made.append(self._comm.Split(color, key)), "split", "").wait()
        return MpiCommunicator(made[0], [self.hosts[r] for r in ranks], parent=self) if inside else None

    def close(self) -> None:
        super().close()
        if self._places is not None:
            self._places.close()
            self._places = None

    def _all_reduce(self, buffer: Buffer, op: Op) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, _message(buffer), _reduce_op(buffer.dtype, op))
        _finish(buffer, op, self.size)

    def _broadcast(self, buffer: Buffer, root: int) -> None:
        self._comm.Bcast(_raw(buffer), root)

    def _all_gather(self, source: Buffer, target: Buffer) -> None:
        part = [bytes_of(target), source.nbytes, MPI.BYTE]
        self._comm.Allgather(_raw(source), part)

    def _reduce_scatter(self, source: Buffer, target: Buffer, op: Op) -> None:
        part = [bytes_of(source), target.count, _message(source)[2]]
        self._comm.Reduce_scatter_block(part, _message(target), _reduce_op(source.dtype, op))
        _finish(target, op, self.size)

    def _all_to_all(
        self, source: Buffer, target: Buffer, source_bytes: list[int], target_bytes: list[int]
    ) -> None:
        self._comm.Alltoallv(
            [bytes_of(source), source_bytes, MPI.BYTE], [bytes_of(target), target_bytes, MPI.BYTE]
        )

    def _barrier(self) -> None:
        self._comm.Barrier()

    def _start_send(self, buffer: Buffer, to: int, tag: int) -> Call:
        request = self._comm.Isend(_raw(buffer), to, tag)
        return lambda: _ended(request, buffer)

    def _start_recv(self, buffer: Buffer, source: int, tag: int) -> Call:
        request = self._comm.Irecv(_raw(buffer), source, tag)
        return lambda: _ended(request, buffer)

    def _explain(self, error: Exception, name: str) -> CommunicatorError:
        return CommunicatorError(f"{name}: {error}")

    def _free(self) -> None:
        self._comm.Free()
        if self._parent is None:
            MPI.Finalize()


def _ended(request: Any, buffer: Buffer) -> None:
    while not request.Test():  # MPI's own wait would keep a core busy beside the collectives
        time.sleep(1e-4)
    del buffer


def _message(buffer: Buffer) -> list[Any]:
    kind = _TYPES.get(buffer.dtype)
    if kind is None:
        raise CommunicatorError(
            f"engine mpi can't reduce {buffer.dtype.name}: MPI has no such type; use ring"
        )
    return [bytes_of(buffer), buffer.count, kind]


def _raw(buffer: Buffer) -> list[Any]:
    return [bytes_of(buffer), buffer.nbytes, MPI.BYTE]


def _reduce_op(dtype: DType, op: Op) -> Any:
    if dtype is DType.BOOL:
        return MPI.LOR if op in (Op.SUM, Op.MAX) else MPI.LAND
    return _OPS[op]


def _finish(buffer: Buffer, op: Op, size: int) -> None:
    if op is Op.AVERAGE:
        array: np.ndarray[Any, Any] = np.frombuffer(bytes_of(buffer), dtype=NUMPY[buffer.dtype])
        if array.dtype.kind == "f":
            array /= size
        else:
            array[:] = (array - np.fmod(array, size)) // size
