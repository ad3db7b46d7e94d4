"""Measuring: ordinary runs, folded into one point per number of workers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlrun import runs
from mlrun.errors import ExitCode
from mlrun.launch import launcher
from mlrun.protocol import Event, StepEvent
from mlrun.report.history import history
from mlrun.scaletest.plan import Case
from mlrun.worker.meter import WARM_UP_STEPS


@dataclass(frozen=True, slots=True)
class RankTime:
    """Where one rank's time went: seconds per step, after the warm-up."""

    rank: int
    host: str
    samples: float
    compute_s: float
    """Data and computing; the other part of a step is ``waiting_s``."""
    waiting_s: float
    """Exposed communication, and waiting for slower ranks."""

    @property
    def step_s(self) -> float:
        return self.compute_s + self.waiting_s


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured for one case. ``speeds``: samples per second of all workers, one per repeat."""

    series: str
    job: str
    batch: int
    """Of each worker, or of all where that is what stays."""
    workers: int
    unit: str
    simulated: bool
    global_batch: int
    speeds: list[float]
    ranks: list[RankTime]
    """Of the last repeat."""
    links: list[dict[str, Any]]
    """The links between hosts, as summary.json tells them."""
    pace_mbit_s: float | None
    """What the links were slowed to; None where they weren't."""
    parameters: int
    watts: float | None
    """Of all GPUs; None where a host doesn't tell."""

    @property
    def speed(self) -> float:
        return statistics.fmean(self.speeds)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the speeds; None from a single one."""
        return statistics.stdev(self.speeds) if len(self.speeds) > 1 else None

    @property
    def step_s(self) -> float:
        return statistics.fmean(rank.step_s for rank in self.ranks)

    @property
    def compute_s(self) -> float:
        """Of the slowest rank."""
        return max(rank.compute_s for rank in self.ranks)

    @property
    def exposed_s(self) -> float:
        """Communication that nobody computed beside: what the rank that waits least waits."""
        return min(rank.waiting_s for rank in self.ranks)


def measure(
    case: Case, repeats: int, runs_dir: Path, on_run: Callable[[], None]
) -> tuple[Point | None, ExitCode]:
    """Run a case ``repeats`` times. The point covers the runs that ended well; None if there were none.

    Raises:
        RequestError, RefusedError: nothing was started.
    """
    results: list[launcher.RunResult] = []
    exit_code = ExitCode.DONE
    for _ in range(repeats):
        result = launcher.launch(case.spec, np=case.workers, console="off", runs_dir=runs_dir)
        exit_code = result.exit_code
        if exit_code is not ExitCode.DONE or result.summary["reason"] != "complete":
            break
        results.append(result)
        on_run()
    return (_point(case, results) if results else None), exit_code


def _point(case: Case, results: list[launcher.RunResult]) -> Point:
    summary = results[-1].summary
    events = list(runs.read_events(results[-1].run_dir))
    return Point(
        series=case.series,
        job=case.spec.name,
        batch=case.spec.batch_size or case.spec.global_batch_size or 1,
        workers=case.workers,
        unit=summary["unit"],
        simulated=case.spec.framework == "sim",
        global_batch=summary["global_batch_size"],
        speeds=[result.summary["samples_per_second"] for result in results],
        ranks=_rank_times(events, summary["ranks"]),
        links=summary["links"],
        pace_mbit_s=case.spec.allreduce.pace_mbit_s,
        parameters=summary["parameters"],
        watts=_watts(events, {rank["host"] for rank in summary["ranks"]}),
    )


def _rank_times(events: Iterable[Event], ranks: list[dict[str, Any]]) -> list[RankTime]:
    told: dict[int | None, list[StepEvent]] = {}
    for event in events:
        if isinstance(event, StepEvent) and event.step - event.steps >= WARM_UP_STEPS:
            told.setdefault(event.rank, []).append(event)
    return [_rank_time(rank, told.get(rank["rank"], [])) for rank in ranks]


def _rank_time(rank: dict[str, Any], told: list[StepEvent]) -> RankTime:
    """From the reports after the warm-up; from the whole run where it was too short for one."""
    steps: float = sum(event.steps for event in told)
    if steps:
        computing = sum(event.data_s + event.compute_s for event in told) / steps
        waiting = sum(event.comm_s for event in told) / steps
    else:
        steps = rank["samples"] / rank["batch_size"]
        computing, waiting = (rank["data_s"] + rank["compute_s"]) / steps, rank["comm_s"] / steps
    return RankTime(rank["rank"], rank["host"], rank["batch_size"], computing, waiting)


def _watts(events: Iterable[Event], hosts: set[str]) -> float | None:
    told = history(events).hosts
    each = [told[host].watts.mean if host in told else None for host in hosts]
    known = [watts for watts in each if watts is not None]
    return sum(known) if len(known) == len(each) else None
