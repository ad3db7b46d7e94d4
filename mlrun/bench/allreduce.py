"""Compare all-reduce engines: all up at once, taking turns, so that every round compares like with like."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlrun.allreduce.communicator import DType
from mlrun.bench.group import Group, Round
from mlrun.bench.timing import iterations_of
from mlrun.errors import RequestError

ENGINES = ("ring", "gloo", "mpi", "horovod")
DTYPES = tuple(kind.name.lower() for kind in DType)
LIMIT_FROM_BYTES = 4 << 20
"""Below, a time is made of latencies, which a raw copy says nothing about."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of a ratio of paired times, with its interval of at least 95 % (None: too few rounds)."""

    median: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One engine at one size. Rates in bytes/s; ratios are this engine's rate over the other's."""

    engine: str
    bytes: int
    count: int
    dtype: str
    seconds: float
    """Median over the rounds of the slowest rank's time for one all-reduce."""
    algorithm_rate: float
    bus_rate: float
    """``algorithm_rate`` times 2 (n - 1) / n, nccl-tests' measure of what the links carry."""
    wrong: int
    of_limit: Ratio | None
    ring_time: Ratio | None
    """Ring's time over this engine's: below 1, ring is faster. None for ring itself."""


def compare(
    size: int,
    engines: Sequence[str],
    sizes: Sequence[int],
    *,
    dtype: str = "float32",
    links: int = 1,
    rounds: int = 15,
    shared_memory: bool = True,
    on_rows: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Measure ``engines`` with ``size`` ranks on this machine, over TCP on loopback.

    Where MPI is compared, it also runs over shared memory, for information (``mpi-shm``).

    Args:
        sizes: payloads in bytes.
        links: sockets per neighbour, for ring and the raw copy.
        on_rows: told the rows of each size as soon as they are there.

    Raises:
        RequestError: an unknown engine or dtype.
        RunFailedError: an engine failed.
    """
    for name, known in [*((engine, ENGINES) for engine in engines), (dtype, DTYPES)]:
        if name not in known:
            raise RequestError(f"{name!r} can't be measured", fix=f"choose from {', '.join(known)}")
    if size < 2:
        raise RequestError(f"an all-reduce of {size} ranks moves nothing", fix="give -np 2 or more")
    names = [*engines, *(["mpi-shm"] if shared_memory and "mpi" in engines else [])]
    limited = dtype == "float32" and max(sizes) >= LIMIT_FROM_BYTES
    rows: list[Row] = []
    with contextlib.ExitStack() as ending:
        groups = []
        for name in [*names, *(["limit"] if limited else [])]:
            groups.append(Group(name, size, {"links": links}))
            ending.callback(groups[-1].close)
        for payload in sizes:
            turns = [g for g in groups if g.engine != "limit" or payload >= LIMIT_FROM_BYTES]
            measured = _take_turns(turns, payload, dtype, rounds)
            of_size = [row_of(name, measured, payload, dtype, size) for name in names]
            on_rows(of_size)
            rows += of_size
    return rows


def _take_turns(groups: list[Group], payload: int, dtype: str, rounds: int) -> dict[str, list[Round]]:
    """``rounds`` rounds in which every group has its turn, each time in another order."""
    count = max(1, payload // DType[dtype.upper()].itemsize)
    fastest = min(group.measure(count, dtype.upper(), 1).seconds for group in groups)
    iterations = iterations_of(fastest)
    measured: dict[str, list[Round]] = {group.engine: [] for group in groups}
    for turn in range(rounds):
        first = turn % len(groups)
        for group in groups[first:] + groups[:first]:
            measured[group.engine].append(group.measure(count, dtype.upper(), iterations))
    return measured


def row_of(name: str, measured: dict[str, list[Round]], payload: int, dtype: str, size: int) -> Row:
    """The row of engine ``name``; ``measured`` has the rounds of every engine that took turns with it."""
    itemsize = DType[dtype.upper()].itemsize
    count = max(1, payload // itemsize)
    times = [each.seconds for each in measured[name]]
    rate = count * itemsize / statistics.median(times)

    def time_of(other: str) -> Ratio | None:
        if other not in measured or other == name:
            return None
        return median_ratio([their.seconds / own for their, own in zip(measured[other], times, strict=True)])

    return Row(
        engine=name,
        bytes=count * itemsize,
        count=count,
        dtype=dtype,
        seconds=statistics.median(times),
        algorithm_rate=rate,
        bus_rate=rate * 2 * (size - 1) / size,
        wrong=sum(each.wrong or 0 for each in measured[name]),
        of_limit=time_of("limit"),
        ring_time=time_of("ring"),
    )


def median_ratio(ratios: Sequence[float]) -> Ratio:
    """The median and its sign-test interval: the order statistics that enclose it in 95 % of all samples.

    Assumes only that rounds are independent, nothing of the shape of their times.
    """
    ordered = sorted(ratios)
    n = len(ordered)
    outside, below = 0, 0.0
    while 2 * (below + math.comb(n, outside) / 2**n) <= 0.05:
        below += math.comb(n, outside) / 2**n
        outside += 1
    median = statistics.median(ordered)
    return Ratio(median, ordered[outside - 1], ordered[n - outside]) if outside else Ratio(median, None, None)


def parse_size(text: str) -> int:
    """``4KB`` as bytes; units are powers of 1024, as in nccl-tests.

    Raises:
        RequestError: not a size.
    """
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise RequestError(f"{text!r} is not a size", fix="write it like 4KB, 64KB, 1MB or 100MB")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2].lower()]
