"""The Communicator over Horovod's own engine, on the CPU with Gloo, started without horovodrun.

Horovod's rendezvous and sockets know no secret: this engine is for networks one trusts.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence

import psutil

from mlrun.allreduce.blocking import BlockingCommunicator, Call, bytes_of
from mlrun.allreduce.communicator import (
    Buffer,
    Communicator,
    CommunicatorError,
    DType,
    Op,
    PeerLostError,
)
from mlrun.allreduce.links import Listener
from mlrun.allreduce.side_channel import SideChannel
from mlrun.errors import RequestError
from mlrun.protocol import Plan

try:
    import horovod.torch as hvd
    import torch
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
except ImportError as error:
    raise RequestError(
        f"allreduce.engine horovod needs Horovod built for torch, which isn't there ({error})",
        fix="docs/engines.md says how to build it; or use engine: ring, which needs nothing",
    ) from error

_TORCH = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.FLOAT16: torch.float16,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.BOOL: torch.uint8,
}
_OPS = {Op.SUM: hvd.Sum, Op.AVERAGE: hvd.Sum, Op.MIN: hvd.Min, Op.MAX: hvd.Max, Op.PRODUCT: hvd.Product}
_SMALL = (torch.int8, torch.uint8)
"""Types that Horovod moves but doesn't reduce."""


def from_plan(plan: Plan, rank: int, listener: Listener, secret: str) -> HorovodCommunicator:
    """Join the group of ``plan``: rank 0 keeps Horovod's rendezvous for as long as it takes.

    Raises:
        LinkError: a neighbour is missing.
        RequestError: a wire_dtype, or a Horovod without Gloo.
    """
    if plan.settings.get("wire_dtype"):
        raise RequestError("allreduce.wire_dtype needs engine: ring", fix="leave out wire_dtype")
    if not hvd.gloo_built():
        raise RequestError(
            "this Horovod was built without Gloo, so only horovodrun with MPI can start it",
            fix="build it with HOROVOD_WITH_GLOO=1 (docs/engines.md), or use engine: ring",
        )
    channel = SideChannel(plan, rank, listener, secret)
    address = channel.address or "127.0.0.1"
    size = len(plan.hosts)
    server = None
    if rank == 0:
        server = RendezvousServer(0)
        port = server.start()
        # One host per rank: its own local groups would only be a second way over the same sockets.
        server.init(get_host_assignments(parse_hosts(",".join(f"rank{r}:1" for r in range(size))), size))
    word = channel.share(f"{address} {port}" if server is not None else None)
    os.environ |= _environment(rank, size, address, *word.split())
    hvd.init()
    hvd.barrier()
    if server is not None:
        server.stop()
    return HorovodCommunicator(rank, plan.hosts, channel=channel)


def _environment(rank: int, size: int, address: str, server: str, port: str) -> dict[str, str]:
    """What horovodrun would tell the rank."""
    return {
        "HOROVOD_HOSTNAME": f"rank{rank}",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank),
        "HOROVOD_CROSS_SIZE": str(size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": _interface(address),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def _interface(address: str) -> str:
    """The interface that has ``address``: Horovod takes no addresses."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses if each.family == socket.AF_INET):
            return name
    raise CommunicatorError(f"no interface has {address}, by which the neighbours reach this rank")


class HorovodCommunicator(BlockingCommunicator):
    """Made by ``from_plan``. No bfloat16, no send and recv, no groups of some ranks: Horovod has them not."""

    engine = "horovod"

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        *,
        channel: SideChannel | None = None,
        parent: HorovodCommunicator | None = None,
        name: str = "mlrun",
    ) -> None:
        self._name = name
        self._calls, self._splits = itertools.count(), itertools.count()
        super().__init__(rank, hosts, channel, parent)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """All ranks in their order: Horovod tells calls apart by name, so that is a group of its own."""
        if list(ranks) != list(range(self.size)):
            raise CommunicatorError(
                f"engine horovod has no group of ranks {list(ranks)}, only of all in their order: use ring"
            )
        return HorovodCommunicator(
            self.rank, self.hosts, parent=self, name=f"{self._name}.{next(self._splits)}"
        )

    def _next(self) -> str:
        """The name by which Horovod matches a call; the same on every rank."""
        return f"{self._name}:{next(self._calls)}"

    def _all_reduce(self, buffer: Buffer, op: Op) -> None:
        if buffer.count:
            self._reduce(_tensor(buffer), buffer.dtype, op)

    def _reduce(self, tensor: torch.Tensor, dtype: DType, op: Op) -> None:
        """In place."""
        if dtype is DType.BOOL:  # as bytes of 0 and 1: or is the maximum, and is the minimum
            op = Op.MAX if op in (Op.SUM, Op.MAX) else Op.MIN
        wide = tensor.int() if tensor.dtype in _SMALL else tensor
        hvd.allreduce_(wide, name=self._next(), op=_OPS[op])
        if op is Op.AVERAGE:
            wide.div_(self.size, rounding_mode=None if wide.is_floating_point() else "trunc")
        if wide is not tensor:
            tensor.copy_(wide)

    def _broadcast(self, buffer: Buffer, root: int) -> None:
        if buffer.count:
            hvd.broadcast_(_raw(buffer), root, name=self._next())

    def _all_gather(self, source: Buffer, target: Buffer) -> None:
        if source.count:
            _raw(target).copy_(hvd.allgather(_raw(source), name=self._next()))

    def _reduce_scatter(self, source: Buffer, target: Buffer, op: Op) -> None:
        if source.count:
            whole = _tensor(source).clone()
            self._reduce(whole, source.dtype, op)
            _tensor(target).copy_(whole[self.rank * target.count : (self.rank + 1) * target.count])

    def _all_to_all(
        self, source: Buffer, target: Buffer, source_bytes: list[int], target_bytes: list[int]
    ) -> None:
        splits = torch.tensor(source_bytes, dtype=torch.int32)
        came, _ = hvd.alltoall(_raw(source), splits, name=self._next())
        _raw(target).copy_(came)

    def _barrier(self) -> None:
        hvd.allreduce_(torch.zeros(1), name=self._next())

    def _start_send(self, buffer: Buffer, to: int, tag: int) -> Call:
        raise CommunicatorError("engine horovod has no send and recv: use ring")

    def _start_recv(self, buffer: Buffer, source: int, tag: int) -> Call:
        return self._start_send(buffer, source, tag)

    def _explain(self, error: Exception, name: str) -> CommunicatorError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, hvd.HorovodInternalError):
            return PeerLostError(f"{name}: a peer has gone: {text}")
        return CommunicatorError(f"{name}: {text}")

    def _free(self) -> None:
        if self._parent is None:
            hvd.shutdown()


def _tensor(buffer: Buffer) -> torch.Tensor:
    if buffer.dtype not in _TORCH:
        raise CommunicatorError(f"engine horovod can't reduce {buffer.dtype.name}: use ring")
    return torch.frombuffer(bytes_of(buffer), dtype=_TORCH[buffer.dtype], count=buffer.count)


def _raw(buffer: Buffer) -> torch.Tensor:
    """Bytes: what only moves data doesn't look at the dtype."""
    if not buffer.count:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytes_of(buffer), dtype=torch.uint8)
