"""One rank of ``mlrun bench allreduce --hosts``, started as scripts are: times the run's own ring."""

from __future__ import annotations

import json
import sys

import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, DType, Op
from mlrun.allreduce.own import own
from mlrun.bench.contestants import over
from mlrun.bench.timing import iterations_of, timed_round


def main(dtype: str, rounds: int, payloads: list[int]) -> None:
    """Rank 0 prints a JSON object per payload: bytes; seconds and wrong elements of each round."""
    ring = own()
    for payload in payloads:
        count = max(1, payload // DType[dtype.upper()].itemsize)
        fastest, _ = _round(ring, count, dtype, 2)
        found = [_round(ring, count, dtype, iterations_of(fastest)) for _ in range(rounds)]
        if ring.rank == 0:
            print(json.dumps({"bytes": payload, "rounds": found}), flush=True)


def _round(ring: Communicator, count: int, dtype: str, iterations: int) -> tuple[float, int]:
    """Seconds on the slowest rank, and wrong elements on all ranks together."""
    done = timed_round(
        over(ring), ring.rank, ring.size, True, count=count, dtype=dtype.upper(), iterations=iterations
    )
    seconds, wrong = np.array([done["seconds"]]), np.array([done["wrong"]], dtype=np.int64)
    ring.all_reduce(Buffer.of(seconds), Op.MAX).wait()
    ring.all_reduce(Buffer.of(wrong)).wait()
    return float(seconds[0]), int(wrong[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
