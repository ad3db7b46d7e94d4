"""A scale test from start to end: plan, measure, predict, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlrun.backends.sim.profiles import ELEMENT_BYTES
from mlrun.errors import ExitCode, RequestError
from mlrun.hosts import hosts_of_spec
from mlrun.scaletest import explain
from mlrun.scaletest.measure import Point, measure
from mlrun.scaletest.model import Link, Setting, buckets_of, predict, rate_in_ring
from mlrun.scaletest.plan import Case
from mlrun.scaletest.report import Predicted, Results, write_charts, write_tables
from mlrun.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. ``predict``: numbers of workers to predict."""

    cases: list[Case]
    repeats: int
    predict: list[int]
    out: Path
    min_efficiency: float | None = None


def scale_test(request: Request, on_run: Callable[[], None]) -> tuple[Results, ExitCode]:
    """Measure all cases, in order, and write what is known after each of them into ``request.out``.

    ``on_run`` is called after every run. A run that fails, or Ctrl-C, ends the test with its exit code.

    Raises:
        RequestError, RefusedError: a case can't be run.
    """
    if request.predict:
        for case in request.cases:
            _refuse_unknown_links(case.spec)
    request.out.mkdir(parents=True, exist_ok=True)
    results = Results([], [])
    exit_code = ExitCode.DONE
    for case in request.cases:
        point, exit_code = measure(case, request.repeats, request.out / "runs", on_run)
        if point is not None:
            results.points.append(point)
            write_tables(results, request.out)
        if exit_code is not ExitCode.DONE:
            break
    else:
        results.complete = True
    results.predicted = _predictions(request, results.points)
    if results.points:
        write_tables(results, request.out)
        write_charts(results, request.out)
    if exit_code is ExitCode.DONE and _missed(request.min_efficiency, results.points):
        exit_code = ExitCode.THRESHOLD_MISSED
    return results, exit_code


def _refuse_unknown_links(spec: JobSpec) -> None:
    """Links are measured between hosts; within one there are none. Said before hours of measuring."""
    if spec.allreduce.pace_mbit_s is None and len(hosts_of_spec(spec.hosts)) < 2:
        raise _unknown_links()


def _unknown_links() -> RequestError:
    return RequestError(
        "the bandwidth of the links isn't known, so nothing can be predicted",
        fix="test on several hosts, or say allreduce.pace_mbit_s",
    )


def _missed(wanted: float | None, points: Sequence[Point]) -> bool:
    """Whether any point is less efficient than asked for."""
    return wanted is not None and any(explain.measured_efficiency(points, point) < wanted for point in points)


def _predictions(request: Request, points: Sequence[Point]) -> list[Predicted]:
    specs = {case.series: case.spec for case in request.cases}
    return [
        foretold
        for series in dict.fromkeys(point.series for point in points)
        for count in request.predict
        for foretold in [_prediction(specs[series], [p for p in points if p.series == series], count)]
    ]


def setting_of(spec: JobSpec, alone: Point, rings: list[list[dict[str, Any]]], workers: int) -> Setting:
    """The predictor's view of ``workers`` hosts like the one that was measured alone.

    ``rings``: the edges of each ring whose links were measured.

    Raises:
        RequestError: the links' bandwidth isn't known.
    """
    paced = spec.allreduce.pace_mbit_s
    measured = rate_in_ring(rings, workers)
    rates = [rate for rate in (measured, paced and paced * 125e3) if rate]
    if not rates:
        raise _unknown_links()
    delay = spec.allreduce.pace_delay_us * 1e-6
    round_trips = [
        edge["round_trip_s"] for ring in rings for edge in ring if edge["round_trip_s"] is not None
    ]
    compute = alone.compute_s
    if spec.global_batch_size is not None:
        compute /= workers
    return Setting(
        compute_s=(compute,) * workers,
        buckets=buckets_of(spec.model.name, alone.parameters, spec.allreduce.bucket_mb),
        link=Link(min(rates), delay + max(round_trips, default=0.0) / 2),
        wire_bytes=2 if spec.allreduce.wire_dtype else ELEMENT_BYTES,
        overlap=spec.allreduce.overlap,
    )


def _prediction(spec: JobSpec, points: Sequence[Point], workers: int) -> Predicted:
    start = explain.base(points, points[0])
    rings = [point.links for point in points if point.links]
    setting = setting_of(spec, start, rings, workers)
    foretold = predict(setting)
    batch = start.global_batch * (1 if spec.global_batch_size else workers)
    speed = batch / foretold.step_s
    speed_up = speed / start.speed
    alone = replace(setting, compute_s=(max(setting.compute_s),))
    return Predicted(
        start.series,
        workers,
        start.unit,
        speed,
        speed_up,
        speed_up / workers,
        foretold.step_s,
        foretold.compute_s,
        foretold.exposed_s,
        explain.foresee(setting, predict(alone).step_s),
    )
