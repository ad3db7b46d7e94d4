"""One rank of ``mlrun bench allreduce --hosts``, started as scripts are: times the run's own ring."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import NUMPY, Buffer, Communicator, DType, Op
from mlrun.allreduce.own import own

ROUND_S = 0.1
MOST_ITERATIONS = 300


def main(dtype: str, rounds: int, payloads: list[int]) -> None:
    """Rank 0 prints a JSON object per payload: bytes, seconds of each round, wrong elements."""
    ring, kind = own(), DType[dtype.upper()]
    for payload in payloads:
        count = max(1, payload // kind.itemsize)
        buffer = Buffer.of(np.zeros(count, dtype=NUMPY[kind]), kind)
        first = _slowest(ring, _seconds(ring, buffer, 2))
        iterations = max(1, min(MOST_ITERATIONS, int(ROUND_S / first)))
        seconds = [_slowest(ring, _seconds(ring, buffer, iterations)) for _ in range(rounds)]
        wrong = _total(ring, _wrong(ring, count, kind))
        if ring.rank == 0:
            print(
                json.dumps({"bytes": count * kind.itemsize, "seconds": seconds, "wrong": wrong}), flush=True
            )


def _seconds(ring: Communicator, buffer: Buffer, iterations: int) -> float:
    """Of one all-reduce on this rank; all ranks begin together."""
    ring.barrier().wait()
    start = time.perf_counter()
    for _ in range(iterations):
        ring.all_reduce(buffer).wait()
    return (time.perf_counter() - start) / iterations


def _slowest(ring: Communicator, seconds: float) -> float:
    value = np.array([seconds])
    ring.all_reduce(Buffer.of(value), Op.MAX).wait()
    return float(value[0])


def _total(ring: Communicator, wrong: int) -> int:
    value = np.array([wrong], dtype=np.int64)
    ring.all_reduce(Buffer.of(value)).wait()
    return int(value[0])


def _wrong(ring: Communicator, count: int, kind: DType) -> int:
    """How many elements of a sum that is known are wrong here."""
    pattern: np.ndarray[Any, Any] = np.arange(count) % 7
    values: np.ndarray[Any, Any] = (pattern + ring.rank).astype(NUMPY[kind])
    ring.all_reduce(Buffer.of(values, kind)).wait()
    expected: np.ndarray[Any, Any] = (ring.size * pattern + sum(range(ring.size))).astype(NUMPY[kind])
    return int(np.count_nonzero(values != expected))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
