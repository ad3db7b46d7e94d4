"""The course of a run as series of numbers, folded from its events."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from mlrun.console.model import Run
from mlrun.protocol import (
    EvaluationEvent,
    Event,
    StepEvent,
    TelemetryEvent,
)


@dataclass(slots=True)
class Series:
    """Values over time (seconds since the start of the run) or over steps."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def add(self, x: float, y: float | None) -> None:
        if y is not None and math.isfinite(y):
            self.x.append(x)
            self.y.append(y)

    def thinned(self, most: int) -> Series:
        """At most ``most`` points, each the mean of its share: a week of seconds is too much to draw."""
        if len(self.x) <= most:
            return self
        edges = [len(self.x) * i // most for i in range(most + 1)]
        shares = [slice(a, b) for a, b in itertools.pairwise(edges)]
        return Series(
            [statistics.fmean(self.x[s]) for s in shares], [statistics.fmean(self.y[s]) for s in shares]
        )

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.y) if self.y else None


@dataclass(slots=True)
class Host:
    """One host's telemetry over time."""

    gpu: Series = field(default_factory=Series)
    cpu: Series = field(default_factory=Series)
    watts: Series = field(default_factory=Series)
    thermal: set[str] = field(default_factory=set)
    chip: str | None = None


@dataclass(slots=True)
class Split:
    """Seconds that a rank spent on its samples, over the whole run."""

    samples: int = 0
    data: float = 0.0
    compute: float = 0.0
    waiting: float = 0.0

    @property
    def speed(self) -> float | None:
        """Samples per second."""
        seconds = self.data + self.compute + self.waiting
        return self.samples / seconds if seconds > 0 else None

    @property
    def shares(self) -> tuple[float, float, float]:
        """Percent of data, compute and waiting."""
        total = self.data + self.compute + self.waiting or 1.0
        return 100 * self.data / total, 100 * self.compute / total, 100 * self.waiting / total


@dataclass(slots=True)
class History:
    """What the charts and tables of a report show."""

    run: Run = field(default_factory=Run)
    speed: Series = field(default_factory=Series)
    """Samples per second of all ranks over time."""
    rank_speed: dict[int, Series] = field(default_factory=dict)
    splits: dict[int, Split] = field(default_factory=dict)
    loss: Series = field(default_factory=Series)
    """Over steps."""
    metrics: dict[str, Series] = field(default_factory=dict)
    """Over steps."""
    hosts: dict[str, Host] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.run.apply(event)
        at = event.time - (self.run.started or event.time)
        if isinstance(event, StepEvent):
            self._stepped(event, at)
        elif isinstance(event, EvaluationEvent):
            self._evaluated(event)
        elif isinstance(event, TelemetryEvent) and event.host is not None:
            self._told(event, event.host, at)

    def _stepped(self, event: StepEvent, at: float) -> None:
        if event.rank is None:
            return
        if event.loss is not None and (not self.loss.x or event.step > self.loss.x[-1]):
            self.loss.add(event.step, event.loss)
        speed = self.rank_speed.setdefault(event.rank, Series())
        speed.add(at, event.samples / event.seconds if event.seconds > 0 else None)
        split = self.splits.setdefault(event.rank, Split())
        split.samples += event.samples
        split.data += event.data_s
        split.compute += event.compute_s
        split.waiting += event.comm_s
        if event.rank == min(self.run.workers):
            self.speed.add(at, self.run.speed)

    def _evaluated(self, event: EvaluationEvent) -> None:
        for name, value in self.run.metrics.items():
            series = self.metrics.setdefault(name, Series())
            if not series.x or event.step > series.x[-1]:
                series.add(event.step, value)

    def _told(self, event: TelemetryEvent, name: str, at: float) -> None:
        host = self.hosts.setdefault(name, Host())
        host.gpu.add(at, event.gpu_percent)
        host.cpu.add(at, event.cpu_percent)
        host.watts.add(at, event.gpu_watts)
        host.chip = event.chip or host.chip
        if event.thermal is not None:
            host.thermal.add(event.thermal)


def history(events: Iterable[Event]) -> History:
    told = History()
    for event in events:
        told.add(event)
    return told
