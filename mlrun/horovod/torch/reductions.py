"""All-reduces of tensors, whatever their device.

A call whose name ends in ``_`` works in place; gradients flow back through ``allreduce`` and
``grouped_allreduce``.
``name`` is there for Horovod's sake: calls are matched by their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.allreduce.communicator import Op
from mlrun.horovod.options import Average, check_process_set, global_process_set, reduction
from mlrun.horovod.torch.compression import Compression
from mlrun.horovod.torch.handle import Handle, group, through
from mlrun.horovod.world import rank, size

_OPS = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.AVERAGE: dist.ReduceOp.AVG,
    Op.MIN: dist.ReduceOp.MIN,
    Op.MAX: dist.ReduceOp.MAX,
    Op.PRODUCT: dist.ReduceOp.PRODUCT,
}


def reduce_in_place(tensors: Sequence[Tensor], op: Op, before: float = 1.0, after: float = 1.0) -> Handle:
    """Tensors of one type travel together. ``before`` and ``after``: factors."""
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    works = []
    for same in alike.values():
        _scale(same, before)
        works.append(group().allreduce_coalesced(same, _options(op)))

    def result() -> list[Tensor]:
        for same in alike.values():
            _scale(same, after)
        return list(tensors)

    return Handle(works, result)


def _scale(tensors: list[Tensor], factor: float) -> None:
    if factor != 1:
        torch._foreach_mul_(tensors, factor)


def _options(op: Op) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = _OPS[op]  # type: ignore[assignment]
    return options


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    check_process_set(process_set)
    return reduce_in_place(tensors, reduction(op, average), prescale_factor, postscale_factor)


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **options: Any) -> Handle:
    return grouped_allreduce_async_([tensor.detach().clone() for tensor in tensors], *args, **options)


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    reduced: list[Tensor] = grouped_allreduce_async_(tensors, *args, **options).wait()
    return reduced


def allreduce_async_(tensor: Tensor, *args: Any, **options: Any) -> Handle:
    return grouped_allreduce_async_([tensor], *args, **options).then(_only)


def allreduce_async(tensor: Tensor, *args: Any, **options: Any) -> Handle:
    return grouped_allreduce_async([tensor], *args, **options).then(_only)


def allreduce_(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
    return grouped_allreduce_([tensor], *args, **options)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> list[Tensor]:
    check_process_set(process_set)
    chosen = reduction(op, average)

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        small = [compression.compress(tensor) for tensor in given]
        sent = [tensor.clone() for tensor, _ in small]
        reduce_in_place(sent, chosen, prescale_factor, postscale_factor).wait()
        return [compression.decompress(tensor, c) for tensor, (_, c) in zip(sent, small, strict=True)]

    return through(run, run, tensors)


def allreduce(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
    return grouped_allreduce([tensor], *args, **options)[0]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """This rank's rows of the reduced tensor; where they don't divide, the first ranks have one more."""
    check_process_set(process_set)
    chosen, source = reduction(op), tensor.detach().clone()
    _scale([source], prescale_factor)
    each, more = divmod(len(source), size())
    if more:
        start = rank() * each + min(rank(), more)
        count = each + (rank() < more)
        handle = reduce_in_place([source], chosen, after=postscale_factor)
        return handle.then(lambda _: source[start : start + count].clone())
    own = torch.empty_like(source[:each])
    work = group().reduce_scatter_single(own, source, _options(chosen))

    def result() -> Tensor:
        _scale([own], postscale_factor)
        return own

    return Handle([work], result)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    small, context = compression.compress(tensor.detach())
    handle = reducescatter_async(small, name, op, process_set, prescale_factor, postscale_factor)
    scattered: Tensor = compression.decompress(handle.wait(), context)
    return scattered


def _only(tensors: list[Tensor]) -> Tensor:
    return tensors[0]
