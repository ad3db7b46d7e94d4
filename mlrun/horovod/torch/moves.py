"""Collectives that move tensors, whatever their device; gradients flow back through
``allgather`` and ``broadcast``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.allreduce.communicator import Op
from mlrun.horovod.options import check_process_set, global_process_set
from mlrun.horovod.torch.handle import Handle, group, through
from mlrun.horovod.torch.reductions import reduce_in_place
from mlrun.horovod.world import rank, size, world


def allgather_async(tensor: Tensor, name: str | None = None, process_set: Any = global_process_set) -> Handle:
    """All ranks' tensors below each other; they may differ in their number of rows."""
    check_process_set(process_set)
    rows = _counts_of_all(len(tensor))
    padded = tensor.detach().new_zeros((max(rows), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor.detach()
    gathered = padded.new_empty((size(), *padded.shape))
    work = group().all_gather_single(gathered, padded)
    return Handle([work], lambda: torch.cat([part[:n] for part, n in zip(gathered, rows, strict=True)]))


def allgather(tensor: Tensor, name: str | None = None, process_set: Any = global_process_set) -> Tensor:
    rows: list[int] = _counts_of_all(len(tensor)) if tensor.requires_grad else []

    def gradients(given: Sequence[Tensor]) -> list[Tensor]:
        summed = reduce_in_place([given[0].clone()], Op.SUM).wait()[0]
        return [summed.split(rows)[rank()]]

    return through(lambda own: [allgather_async(own[0], name, process_set).wait()], gradients, [tensor])[0]


def grouped_allgather(tensors: Sequence[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    return [allgather(tensor, *args, **options) for tensor in tensors]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    check_process_set(process_set)
    options = dist.BroadcastOptions()
    options.rootRank = root_rank
    work = group().broadcast([tensor.detach()], options)
    return Handle([work], lambda: tensor)


def broadcast_async(tensor: Tensor, root_rank: int, *args: Any, **options: Any) -> Handle:
    return broadcast_async_(tensor.detach().clone(), root_rank, *args, **options)


def broadcast_(tensor: Tensor, root_rank: int, *args: Any, **options: Any) -> Tensor:
    result: Tensor = broadcast_async_(tensor, root_rank, *args, **options).wait()
    return result


def broadcast(tensor: Tensor, root_rank: int, *args: Any, **options: Any) -> Tensor:
    def gradients(given: Sequence[Tensor]) -> list[Tensor]:
        summed: Tensor = reduce_in_place([given[0].clone()], Op.SUM).wait()[0]
        return [summed if rank() == root_rank else torch.zeros_like(summed)]

    def run(own: Sequence[Tensor]) -> list[Tensor]:
        return [broadcast_async(own[0], root_rank, *args, **options).wait()]

    return through(run, gradients, [tensor])[0]


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """``splits[i]`` rows go to rank i, equally many by default.

    The result has what came, by rank; and how many rows came from each, where ``splits`` is given.
    """
    check_process_set(process_set)
    source = tensor.detach()
    sent, received = _splits(len(source), splits)
    came = source.new_empty((sum(received), *source.shape[1:]))
    work = group().all_to_all_single(came, source.contiguous(), received, sent)
    if splits is None:
        return Handle([work], lambda: came)
    return Handle([work], lambda: (came, torch.tensor(received, dtype=torch.int32)))


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    return alltoall_async(tensor, splits, name, process_set).wait()


def barrier(process_set: Any = global_process_set) -> None:
    """Wait until every rank is here."""
    check_process_set(process_set)
    group().barrier().wait()


def join(device: int = -1) -> int:
    """This rank has no more data: take part in the others' all-reduces with zeros until all have joined.

    Returns the rank that joined last. What the others call meanwhile must be all-reduces.
    """
    return world().join()


def _counts_of_all(own: int) -> list[int]:
    counts = torch.empty(size(), dtype=torch.int64)
    group().all_gather_single(counts, torch.tensor([own])).wait()
    found: list[int] = counts.tolist()
    return found


def _splits(rows: int, splits: Any) -> tuple[list[int], list[int]]:
    """Rows to and from each rank.

    Raises:
        ValueError: ``splits`` doesn't share all rows.
    """
    sent = [rows // size()] * size() if splits is None else torch.as_tensor(splits).tolist()
    if len(sent) != size() or sum(sent) != rows:
        raise ValueError(f"splits {sent} don't share {rows} rows among {size()} ranks")
    received = torch.empty(size(), dtype=torch.int64)
    group().all_to_all_single(received, torch.tensor(sent), [], []).wait()
    counts: list[int] = received.tolist()
    return sent, counts
