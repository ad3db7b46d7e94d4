"""The Communicator over Open MPI, through mpi4py, for workers that mpirun has started."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlrun.allreduce import mpirun
from mlrun.allreduce.blocking import BlockingCommunicator, Call, bytes_of
from mlrun.allreduce.communicator import NUMPY, Buffer, Communicator, CommunicatorError, DType, Op
from mlrun.allreduce.links import Listener
from mlrun.allreduce.side_channel import SideChannel
from mlrun.errors import RequestError
from mlrun.protocol import Plan

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
    """Join the group of ``plan``; its ranks needn't be numbered as mpirun did.

    Raises:
        LinkError: a neighbour is missing.
        RequestError: a wire_dtype, or a worker that mpirun hasn't started.
    """
    if plan.settings.get("wire_dtype"):
        raise RequestError("allreduce.wire_dtype needs engine: ring", fix="leave out wire_dtype")
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise RequestError("engine mpi needs workers started by mpirun", fix="use mlrun launch, or mpirun")
    channel = SideChannel(plan, rank, listener, secret)
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MpiCommunicator(MPI.COMM_WORLD.Split(0, rank), plan.hosts, channel=channel)


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
        parent: MpiCommunicator | None = None,
    ) -> None:
        self._comm = comm
        super().__init__(comm.Get_rank(), hosts, channel, parent)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        inside = self.rank in ranks
        color, key = (0, list(ranks).index(self.rank)) if inside else (MPI.UNDEFINED, 0)
        made: list[Any] = []
        self._enqueue(lambda: made.append(self._comm.Split(color, key)), "split", "").wait()
        return MpiCommunicator(made[0], [self.hosts[r] for r in ranks], parent=self) if inside else None

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
