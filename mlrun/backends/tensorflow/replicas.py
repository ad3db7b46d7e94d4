"""What ranks tell each other besides gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, Op


def total(communicator: Communicator | None, values: Sequence[float]) -> list[float]:
    """Each value summed over ranks, in double precision. Collective."""
    summed = np.array(values, dtype=np.float64)
    if communicator is not None:
        communicator.all_reduce(Buffer.of(summed), Op.SUM, name="sums of measures").wait()
    return [float(value) for value in summed]


def gather(communicator: Communicator | None, value: int) -> tuple[int, ...]:
    """Every rank's ``value``, in rank order. Collective."""
    if communicator is None:
        return (value,)
    values = np.zeros(communicator.size, dtype=np.int64)
    own = np.array([value], dtype=np.int64)
    communicator.all_gather(Buffer.of(own), Buffer.of(values), name="batch sizes").wait()
    return tuple(int(each) for each in values)


def copy_from_first(communicator: Communicator | None, variables: Sequence[Any]) -> None:
    """Rank 0's values everywhere. Collective."""
    if communicator is None:
        return
    for variable in variables:
        value = np.array(variable.numpy(), order="C")
        bits = value.reshape(-1).view(np.uint8)
        communicator.broadcast(Buffer.of(bits), 0, variable.path).wait()
        variable.assign(value)


def average(communicator: Communicator | None, variables: Sequence[Any]) -> None:
    """What each rank kept by itself (BatchNorm's statistics) becomes its mean. Collective."""
    if communicator is None or not variables:
        return
    values = [variable.numpy() for variable in variables]
    flat = np.concatenate([value.astype(np.float32).reshape(-1) for value in values])
    communicator.all_reduce(Buffer.of(flat), Op.AVERAGE, name="statistics").wait()
    parts = np.split(flat, np.cumsum([value.size for value in values])[:-1])
    for variable, value, part in zip(variables, values, parts, strict=True):
        variable.assign(part.reshape(value.shape).astype(value.dtype))
