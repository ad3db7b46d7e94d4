"""The Communicator over gloo, as torch.distributed ships it."""

from __future__ import annotations

import datetime
import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlrun.allreduce.blocking import BlockingCommunicator, Call, bytes_of
from mlrun.allreduce.communicator import (
    Buffer,
    Communicator,
    CommunicatorError,
    DeadlineError,
    DType,
    Op,
    PeerLostError,
)
from mlrun.allreduce.links import Listener
from mlrun.allreduce.side_channel import SideChannel
from mlrun.errors import RequestError
from mlrun.protocol import Plan

try:
    import torch
    import torch.distributed
except ImportError as error:
    raise RequestError(
        "allreduce.engine gloo comes with torch, which isn't installed here",
        fix="pip install 'mlrun-ring[torch]', or use engine: ring",
    ) from error

dist: Any = torch.distributed  # half of what is used here has no type stubs

_TORCH = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.BOOL: torch.uint8,
}


def from_plan(plan: Plan, rank: int, listener: Listener, secret: str) -> GlooCommunicator:
    """Join the group of ``plan``.

    gloo's own sockets know no secret: this engine is for networks one trusts.

    Raises:
        LinkError: a neighbour is missing.
        RequestError: the plan asks for what gloo can't do.
    """
    if plan.settings.get("wire_dtype"):
        raise RequestError("allreduce.wire_dtype needs engine: ring", fix="leave out wire_dtype")
    timeout_s = float(plan.settings.get("entry_timeout_s", 1800.0))
    channel = SideChannel(plan, rank, listener, secret)
    address = channel.address or "127.0.0.1"
    store = None
    if rank == 0:
        store = _store(address, 0, master=True)
    word = channel.share(f"{address} {store.port}" if store is not None else None)
    if store is None:
        host, port = word.split()
        store = _store(host, int(port), master=False)
    return GlooCommunicator(rank, plan.hosts, store, address, timeout_s, channel=channel)


def _store(address: str, port: int, *, master: bool) -> Any:
    ipaddress.ip_address(address)
    return dist.TCPStore(
        address, port, is_master=master, wait_for_workers=False, timeout=datetime.timedelta(seconds=120)
    )


class GlooCommunicator(BlockingCommunicator):
    """Made by ``from_plan``. Sums of float16 and bfloat16 are rounded at each hop, as gloo does."""

    engine = "gloo"

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        store: Any,
        address: str,
        timeout_s: float,
        *,
        channel: SideChannel | None = None,
        parent: GlooCommunicator | None = None,
    ) -> None:
        self._store, self._address, self._timeout_s = store, address, timeout_s
        self._named: Counter[str] = Counter()
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = datetime.timedelta(seconds=timeout_s)
        self._group: Any = dist.ProcessGroupGloo(store, rank, len(hosts), options)
        super().__init__(rank, hosts, channel, parent)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        return self.subgroup(ranks, "split") if self.rank in ranks else None

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator:
        named = f"{name} {list(ranks)}"
        self._named[named] += 1
        store = dist.PrefixStore(f"{named} {self._named[named]}", self._store)
        hosts = [self.hosts[r] for r in ranks]
        return GlooCommunicator(
            list(ranks).index(self.rank), hosts, store, self._address, self._timeout_s, parent=self
        )

    def _all_reduce(self, buffer: Buffer, op: Op) -> None:
        if buffer.count:
            tensor = _tensor(buffer)
            options = dist.AllreduceOptions()
            options.reduceOp = _reduce_op(buffer.dtype, op)
            self._group.allreduce([tensor], options).wait()
            _finish(tensor, op, self.size)

    def _broadcast(self, buffer: Buffer, root: int) -> None:
        if buffer.count:
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._group.broadcast([_raw(buffer)], options).wait()

    def _all_gather(self, source: Buffer, target: Buffer) -> None:
        if source.count:
            self._group._allgather_base(_raw(target), _raw(source)).wait()

    def _reduce_scatter(self, source: Buffer, target: Buffer, op: Op) -> None:
        if source.count:
            whole = _tensor(source).clone()
            options = dist.AllreduceOptions()
            options.reduceOp = _reduce_op(source.dtype, op)
            self._group.allreduce([whole], options).wait()
            part = whole[self.rank * target.count : (self.rank + 1) * target.count]
            _finish(part, op, self.size)
            _tensor(target).copy_(part)

    def _all_to_all(
        self, source: Buffer, target: Buffer, source_bytes: list[int], target_bytes: list[int]
    ) -> None:
        options = dist.AllToAllOptions()
        self._group.alltoall_base(_raw(target), _raw(source), target_bytes, source_bytes, options).wait()

    def _barrier(self) -> None:
        self._group.barrier().wait()

    def _start_send(self, buffer: Buffer, to: int, tag: int) -> Call:
        work = self._group.send([_raw(buffer)], to, tag)
        return lambda: _ended(work, buffer)

    def _start_recv(self, buffer: Buffer, source: int, tag: int) -> Call:
        work = self._group.recv([_raw(buffer)], source, tag)
        return lambda: _ended(work, buffer)

    def _explain(self, error: Exception, name: str) -> CommunicatorError:
        text = str(error).splitlines()[0].rpartition("] ")[2]
        if "imed out" in text:
            return DeadlineError(f"{name}: a rank didn't take part within {self._timeout_s:g} s")
        if "closed by peer" in text or "reset by peer" in text:
            return PeerLostError(f"{name}: a peer has gone: {text}")
        return CommunicatorError(f"{name}: {text}")

    def _free(self) -> None:
        self._group = None


def _ended(work: Any, buffer: Buffer) -> None:
    work.wait()
    del buffer


def _tensor(buffer: Buffer) -> torch.Tensor:
    return torch.frombuffer(bytes_of(buffer), dtype=_TORCH[buffer.dtype], count=buffer.count)


def _raw(buffer: Buffer) -> torch.Tensor:
    """Bytes: what only moves data doesn't look at the dtype."""
    if not buffer.count:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytes_of(buffer), dtype=torch.uint8)


def _reduce_op(dtype: DType, op: Op) -> Any:
    if dtype is DType.BOOL:  # as bytes of 0 and 1: or is the maximum, and is the minimum
        op = Op.MAX if op in (Op.SUM, Op.MAX) else Op.MIN
    kinds = {
        Op.SUM: dist.ReduceOp.SUM,
        Op.AVERAGE: dist.ReduceOp.SUM,
        Op.MIN: dist.ReduceOp.MIN,
        Op.MAX: dist.ReduceOp.MAX,
        Op.PRODUCT: dist.ReduceOp.PRODUCT,
    }
    return kinds[op]


def _finish(tensor: torch.Tensor, op: Op, size: int) -> None:
    if op is Op.AVERAGE:
        tensor.div_(size, rounding_mode=None if tensor.is_floating_point() else "trunc")
