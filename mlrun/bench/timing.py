"""One rank's part of a round: so many all-reduces, timed, and one whose result is checked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import NUMPY, DType
from mlrun.bench.contestants import Prepare

_ROUND_S = 0.1
_MOST_ITERATIONS = 300


def iterations_of(seconds: float) -> int:
    """All-reduces in a round, where one takes ``seconds``."""
    return max(1, min(_MOST_ITERATIONS, int(_ROUND_S / seconds)))


def timed_round(
    prepare: Prepare, rank: int, size: int, checks: bool, *, count: int, dtype: str, iterations: int
) -> dict[str, Any]:
    """Seconds per all-reduce, and how many elements of a checked one are wrong."""
    kind = DType[dtype]
    zeros: np.ndarray[Any, Any] = np.zeros(count, dtype=NUMPY[kind])
    call = prepare(zeros, kind)
    call()  # all ranks start together once this has ended everywhere
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    seconds = (time.perf_counter() - start) / iterations
    return {"seconds": seconds, "wrong": _wrong(prepare, rank, size, count, kind) if checks else None}


def _wrong(prepare: Prepare, rank: int, size: int, count: int, kind: DType) -> int:
    pattern: np.ndarray[Any, Any] = np.arange(count) % 7
    values, expected = pattern + rank, size * pattern + sum(range(size))
    if kind is DType.BOOL:  # whose sum is a logical or
        values, expected = pattern == rank, pattern < size
    stored = _stored(values, kind)
    prepare(stored, kind)()
    return int(np.count_nonzero(stored != _stored(expected, kind)))


def _stored(values: np.ndarray[Any, Any], kind: DType) -> np.ndarray[Any, Any]:
    if kind is DType.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NUMPY[kind])
