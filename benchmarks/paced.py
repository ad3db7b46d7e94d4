"""What the ring makes of links of a given rate, paced in the engine, on one machine: ``benchmarks/paced.py``.

Four ranks, 100 MB of float32. Half the payload goes each way round, so 75 MB per direction of a cable is the
least; the first lines say which share of the paced rate that is. Then two connections beside one, and
bfloat16 on the wire beside float32, in turns. Needs about 4 idle cores for the fastest links.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from typing import Any

from mlrun.bench.group import Group

RANKS = 4
PAYLOAD = 100 << 20
ROUNDS = 3


def seconds_of(*settings: dict[str, Any]) -> list[float]:
    """Per settings, the median seconds of one all-reduce; all take turns."""
    with contextlib.ExitStack() as ending:
        groups = [Group("ring", RANKS, each) for each in settings]
        for group in groups:
            ending.callback(group.close)
        rounds = [[group.measure(PAYLOAD // 4, "FLOAT32", 1) for group in groups] for _ in range(ROUNDS)]
    if any(each.wrong for turn in rounds for each in turn):
        raise SystemExit("wrong results")
    return [statistics.median(turn[i].seconds for turn in rounds) for i in range(len(settings))]


def main(gbit_s: list[float]) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for rate in gbit_s:
        (seconds,) = seconds_of({"pace_mbit_s": rate * 1000})
        share = PAYLOAD * (RANKS - 1) / RANKS / seconds / (rate * 125e6)
        print(f"{rate:g} Gbit/s: {seconds:.3f} s, {share:.3f} of the paced rate", flush=True)
    one, two = seconds_of({"pace_mbit_s": 1000}, {"pace_mbit_s": 1000, "links": 2})
    print(f"two links of 1 Gbit/s: {one / two:.2f} times one", flush=True)
    plain, narrow = seconds_of({"pace_mbit_s": 1000}, {"pace_mbit_s": 1000, "wire_dtype": "bf16"})
    print(f"bfloat16 on a wire of 1 Gbit/s: {plain / narrow:.2f} times float32", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gbit_s", type=float, nargs="*", default=[1, 2.5, 5], help="rates of a link")
    main(parser.parse_args().gbit_s)
