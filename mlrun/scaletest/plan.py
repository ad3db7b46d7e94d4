"""What a scale test runs: which spec, with how many workers, at which batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mlrun.errors import RequestError
from mlrun.hosts import hosts_of_spec
from mlrun.spec import JobSpec
from mlrun.spec.training import Checkpoint
from mlrun.worker.meter import WARM_UP_STEPS

STEPS = 60
"""Where the spec doesn't say ``steps``."""

Fixed: TypeAlias = Literal["batch", "global"]


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the chart: ``spec`` as it is run, with ``workers``."""

    series: str
    spec: JobSpec
    workers: int


def slots(spec: JobSpec, np: int | None) -> int:
    """Workers that there is room for.

    Raises:
        RequestError: as ``hosts_of_spec`` does.
    """
    return np or sum(host.slots for host in hosts_of_spec(spec.hosts)) or 1


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and ``most`` itself."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def with_one(counts: Sequence[int]) -> list[int]:
    """``counts`` in rising order, and one worker, which all others are compared with."""
    return sorted({1, *counts})


def cases(
    specs: Sequence[JobSpec], counts: Sequence[int], batch_sizes: Sequence[int], fixed: Fixed
) -> list[Case]:
    """Every spec at every batch size (its own where none is given) with every number of workers.

    ``fixed: batch`` keeps the samples of a worker (weak scaling), ``global`` those of all workers
    together (strong scaling).

    Raises:
        RequestError: two specs of one name, or too few steps to measure anything.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise RequestError("two of the specs have the same name", fix="give each a name of its own")
    found = []
    for spec in specs:
        for size in batch_sizes or [_own_batch(spec)]:
            series = f"{spec.name}, batch {size}" if batch_sizes else spec.name
            found += [Case(series, _prepared(spec, count, size, fixed), count) for count in counts]
    return found


def _own_batch(spec: JobSpec) -> int:
    return spec.batch_size or spec.global_batch_size or 1


def _prepared(spec: JobSpec, workers: int, batch: int, fixed: Fixed) -> JobSpec:
    """The spec as it is measured: so many steps, and nothing between them."""
    steps = spec.steps or STEPS
    if steps <= WARM_UP_STEPS:
        raise RequestError(
            f"{spec.name} has {steps} steps, and the first {WARM_UP_STEPS} are warm-up",
            fix=f"add --set steps={WARM_UP_STEPS + 5}",
        )
    update: dict[str, Any] = {
        "steps": steps,
        "epochs": None,
        "evaluate": None,
        "checkpoint": Checkpoint(),
        "batch_size": batch if fixed == "batch" else None,
        "global_batch_size": batch if fixed == "global" else None,
    }
    speeds = spec.sim.samples_per_second
    if isinstance(speeds, list):
        if workers > len(speeds):
            raise RequestError(
                f"sim.samples_per_second has {len(speeds)} speeds, and {workers} workers are asked for",
                fix=f"add speeds, or ask for {len(speeds)} workers at most",
            )
        update["sim"] = spec.sim.model_copy(update={"samples_per_second": speeds[:workers]})
    return spec.model_copy(update=update)
