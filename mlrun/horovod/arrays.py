"""Collectives on numpy arrays over all ranks; each returns a new array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Buffer, Op
from mlrun.horovod.world import world

Array = np.ndarray[Any, Any]


def all_reduce(
    array: Any, op: Op, before: float = 1.0, after: float = 1.0, *, in_float16: bool = False
) -> Array:
    """``before`` and ``after``: factors; ``in_float16``: float32 travels so."""
    reduced = np.array(array, order="C")
    if before != 1:
        reduced *= before
    communicator = world().in_float16 if in_float16 else world().communicator
    communicator.all_reduce(_flat(reduced), op, name="allreduce").wait()
    if after != 1:
        reduced *= after
    return reduced


def broadcast(array: Any, root: int) -> Array:
    """``root``'s array."""
    copy = np.array(array, order="C")
    world().communicator.broadcast(_flat(copy), root, name="broadcast").wait()
    return copy


def all_gather(array: Any) -> Array:
    """All ranks' rows below each other; ranks may have different numbers of them."""
    own = np.asarray(array)
    rows = np.empty(world().size, dtype=np.int64)
    _gather(np.array([len(own)], dtype=np.int64), rows)
    padded = np.zeros((int(rows.max()), *own.shape[1:]), dtype=own.dtype)
    padded[: len(own)] = own
    gathered = np.empty((world().size, *padded.shape), dtype=own.dtype)
    _gather(padded, gathered)
    return np.concatenate([part[:count] for part, count in zip(gathered, rows, strict=True)])


def all_to_all(array: Any, splits: Sequence[int] | None) -> tuple[Array, Array]:
    """``splits[i]`` rows go to rank i, equally many by default. What came, and how many rows from each.

    Raises:
        ValueError: ``splits`` doesn't share all rows.
    """
    source = np.array(array, order="C")
    size = world().size
    sent = np.array([len(source) // size] * size if splits is None else splits, dtype=np.int64)
    if len(sent) != size or sent.sum() != len(source):
        raise ValueError(f"splits {sent.tolist()} don't share {len(source)} rows among {size} ranks")
    received = np.empty_like(sent)
    world().communicator.all_to_all(Buffer.of(sent), Buffer.of(received), name="alltoall (splits)").wait()
    came = np.empty((int(received.sum()), *source.shape[1:]), dtype=source.dtype)
    row = math.prod(source.shape[1:])
    world().communicator.all_to_all(
        _flat(source), _flat(came), (sent * row).tolist(), (received * row).tolist(), name="alltoall"
    ).wait()
    return came, received


def reduce_scatter(array: Any, op: Op) -> Array:
    """This rank's rows of the reduced array; where they don't divide, the first ranks have one more."""
    source = np.array(array, order="C")
    each, more = divmod(len(source), world().size)
    if more:
        start = world().rank * each + min(world().rank, more)
        reduced = all_reduce(source, op)
        return reduced[start : start + each + (world().rank < more)]
    own = np.empty((each, *source.shape[1:]), dtype=source.dtype)
    world().communicator.reduce_scatter(_flat(source), _flat(own), op, name="reducescatter").wait()
    return own


def _gather(source: Array, target: Array) -> None:
    world().communicator.all_gather(_flat(source), _flat(target), name="allgather").wait()


def _flat(array: Array) -> Buffer:
    return Buffer.of(array.reshape(-1))
