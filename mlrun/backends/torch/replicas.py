"""What ranks tell each other besides gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mlrun.backends.torch.process_group import MlrunProcessGroup


def total(group: MlrunProcessGroup | None, values: list[float]) -> list[float]:
    """Each value summed over ranks, in double precision. Collective."""
    if group is None:
        return values
    summed = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(summed, group=group)
    return [float(v) for v in summed]


def gather(group: MlrunProcessGroup | None, value: int) -> tuple[int, ...]:
    """Every rank's ``value``, in rank order. Collective."""
    if group is None:
        return (value,)
    values = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(values, torch.tensor([value]), group=group)
    return tuple(int(v) for v in values)


def copy_from_first(group: MlrunProcessGroup | None, tensors: list[Tensor]) -> None:
    """Rank 0's tensors everywhere. Collective."""
    if group is None:
        return
    for tensor in tensors:
        dist.broadcast(tensor, src=0, group=group)


def average_statistics(group: MlrunProcessGroup | None, model: nn.Module) -> None:
    """Buffers that each rank kept by itself (BatchNorm's statistics) become their mean. Collective."""
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if group is None or not buffers:
        return
    flat = torch.cat([b.flatten().to(torch.float32) for b in buffers])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat / group.size(), [b.numel() for b in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
    copy_from_first(group, [b for b in model.buffers() if not b.is_floating_point()])
