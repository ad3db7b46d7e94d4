"""Parameters, optimizer state and objects, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlrun.horovod import objects
from mlrun.horovod.options import check_process_set, global_process_set
from mlrun.horovod.torch.moves import allgather, broadcast_, broadcast_async_
from mlrun.horovod.world import rank


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    process_set: Any = global_process_set,
) -> None:
    """Copy ``root_rank``'s tensors into those of all ranks: a ``state_dict()`` or ``named_parameters()``."""
    named = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    handles = [
        broadcast_async_(value, root_rank, name, process_set)
        for name, value in named
        if isinstance(value, Tensor)
    ]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: Any = global_process_set
) -> None:
    """Give all ranks ``root_rank``'s state and hyperparameters (learning rate, momentum, ...).

    Raises:
        ValueError: LBFGS, whose state is more than tensors per parameter.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS can't be broadcast")
    found: list[Tensor] = []
    plan = _described(optimizer.state_dict(), found)
    plan = broadcast_object(plan, root_rank, None, process_set)
    own = rank() == root_rank
    made: list[Tensor] = []
    state = _made(plan, made)
    broadcast_parameters([("", tensor) for tensor in (found if own else made)], root_rank)
    if not own:
        optimizer.load_state_dict(state)


@dataclass(frozen=True, slots=True)
class _Room:
    """A tensor whose content is still to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _described(value: Any, found: list[Tensor]) -> Any:
    """``value`` with rooms instead of its tensors, which are ``found`` in order."""
    if isinstance(value, Tensor):
        found.append(value)
        return _Room(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _described(each, found) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_described(each, found) for each in value)
    return value


def _made(plan: Any, made: list[Tensor]) -> Any:
    """What ``_described`` described, with empty tensors, which are ``made`` in the same order."""
    if isinstance(plan, _Room):
        made.append(torch.empty(plan.shape, dtype=plan.dtype))
        return made[-1]
    if isinstance(plan, dict):
        return {key: _made(each, made) for key, each in plan.items()}
    if isinstance(plan, list | tuple):
        return type(plan)(_made(each, made) for each in plan)
    return plan


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """``root_rank``'s object. It is pickled."""
    check_process_set(process_set)
    return objects.broadcast_object(obj, root_rank, lambda a: broadcast_(torch.from_numpy(a), root_rank))


def allgather_object(obj: Any, name: str | None = None, process_set: Any = global_process_set) -> list[Any]:
    """Every rank's object, in rank order. They are pickled."""
    check_process_set(process_set)
    own = torch.from_numpy(objects.pickled(obj))
    lengths = allgather(torch.tensor([len(own)]))
    return objects.unpickled(allgather(own).numpy(), lengths.tolist())
