"""What is known of a run, folded from its events. Every view draws from this and nothing else.

Read from ``StateEvent.detail``, wherever a key is present: ``name`` (of the job), ``world_size``, ``step``,
``steps_total``, ``steps_per_epoch``, ``unit`` ("images"), ``run_dir``, ``device``. What isn't told is None.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    FailureEvent,
    LinkEvent,
    LogEvent,
    StateEvent,
    StepEvent,
    SummaryEvent,
    TelemetryEvent,
)

HISTORY = 240
"""Values kept for a sparkline: more than a wide terminal shows."""
WINDOW_S = 3.0
"""Speeds are means over about this much training time, so that figures can be read."""
STEADY_S = 10.0
"""Ranks are compared over about this much training time, so that a hiccup makes no straggler."""


_NOTHING = TelemetryEvent(time=0.0)


def _history() -> deque[float]:
    return deque(maxlen=HISTORY)


def named_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """A validation set's metrics, its loss last and told apart from the training loss."""
    named = {name: value for name, value in metrics.items() if name != "loss"}
    return named if "loss" not in metrics else {**named, "validation loss": metrics["loss"]}


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds of one optimizer step."""

    data_ms: float
    compute_ms: float
    waiting_ms: float

    @property
    def own_ms(self) -> float:
        """What the rank itself needs; in a ring all ranks' totals are those of the slowest."""
        return self.data_ms + self.compute_ms

    @property
    def total_ms(self) -> float:
        return self.own_ms + self.waiting_ms


@dataclass(slots=True)
class Link:
    """What one rank knows of its link to a neighbour."""

    kind: str | None = None
    measured: float | None = None
    """Bytes per second that it could carry before the start."""
    rate: float | None = None
    """Bytes per second that were sent lately."""
    _before: LinkEvent | None = None

    def counted(self, event: LinkEvent) -> None:
        before, self._before = self._before, event
        self.kind, self.measured = event.kind, event.bytes_per_s
        if before is not None and event.time > before.time and event.bytes_sent >= before.bytes_sent:
            self.rate = (event.bytes_sent - before.bytes_sent) / (event.time - before.time)


@dataclass(slots=True)
class Window:
    """The newest steps of one rank that make up ``length_s``, and their sums."""

    length_s: float
    events: deque[StepEvent] = field(default_factory=deque)
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0

    def add(self, event: StepEvent) -> None:
        self.events.append(event)
        self._count(event, 1)
        while self.seconds - self.events[0].seconds >= self.length_s:
            self._count(self.events.popleft(), -1)

    def _count(self, event: StepEvent, sign: int) -> None:
        self.steps += sign * event.steps
        self.samples += sign * event.samples
        self.seconds += sign * event.seconds
        self.data_s += sign * event.data_s
        self.compute_s += sign * event.compute_s
        self.comm_s += sign * event.comm_s

    @property
    def split(self) -> Split | None:
        """Of a mean step."""
        if self.steps == 0:
            return None
        each = 1e3 / self.steps
        # Sums of differences may come out a hair below nothing.
        return Split(*(max(0.0, each * s) for s in (self.data_s, self.compute_s, self.comm_s)))


@dataclass(slots=True)
class Worker:
    """One rank."""

    rank: int
    host: str | None = None
    device: str | None = None
    state: str | None = None
    speed: float | None = None
    """Samples per second."""
    speeds: deque[float] = field(default_factory=_history)
    split: Split | None = None
    steady_split: Split | None = None
    links: dict[int, Link] = field(default_factory=dict)
    """By the neighbour's rank."""
    recent: Window = field(default_factory=lambda: Window(WINDOW_S))
    steady: Window = field(default_factory=lambda: Window(STEADY_S))

    def stepped(self, event: StepEvent) -> None:
        self.recent.add(event)
        self.steady.add(event)
        if self.recent.seconds > 0:
            self.speed = self.recent.samples / self.recent.seconds
        if event.seconds > 0:
            self.speeds.append(event.samples / event.seconds)
        self.split = self.recent.split or self.split
        self.steady_split = self.steady.split or self.steady_split


@dataclass(slots=True)
class Run:
    """One run, as far as its events have told."""

    name: str | None = None
    world_size: int | None = None
    unit: str = "samples"
    run_dir: str | None = None
    state: str | None = None
    started: float | None = None
    """``time`` of the first event."""
    latest: float | None = None
    """``time`` of the newest event."""
    step: int | None = None
    steps_total: int | None = None
    epoch: int | None = None
    steps_per_epoch: int | None = None
    lr: float | None = None
    loss: float | None = None
    losses: deque[float] = field(default_factory=_history)
    metrics: dict[str, float] = field(default_factory=dict)
    metric_history: dict[str, deque[float]] = field(default_factory=dict)
    speeds: deque[float] = field(default_factory=_history)
    """Samples per second of all ranks together."""
    alone: float | None = None
    """Samples per second of one worker in an earlier run; see ``speed_up``."""
    workers: dict[int, Worker] = field(default_factory=dict)
    telemetry: dict[str, TelemetryEvent] = field(default_factory=dict)
    """The newest of each host."""
    logs: deque[LogEvent] = field(default_factory=lambda: deque(maxlen=HISTORY))
    failures: list[FailureEvent] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    _loss_step: int = -1
    _evaluated_step: int = -1

    def apply(self, event: Event) -> None:
        """Fold one more event in."""
        self.started = event.time if self.started is None else self.started
        self.latest = event.time if self.latest is None else max(self.latest, event.time)
        if event.rank is not None:
            worker = self.workers.setdefault(event.rank, Worker(event.rank))
            worker.host = event.host or worker.host
        if isinstance(event, StepEvent):
            self._stepped(event)
        elif isinstance(event, TelemetryEvent):
            if event.host is not None:
                self.telemetry[event.host] = event
        elif isinstance(event, LinkEvent):
            if event.rank is not None:
                self.workers[event.rank].links.setdefault(event.peer, Link()).counted(event)
        elif isinstance(event, LogEvent):
            self.logs.append(event)
        elif isinstance(event, StateEvent):
            self._changed(event)
        elif isinstance(event, EvaluationEvent):
            self._evaluated(event)
        elif isinstance(event, CheckpointEvent):
            self.step = max(self.step or 0, event.step)
        elif isinstance(event, FailureEvent):
            self.failures.append(event)
        elif isinstance(event, SummaryEvent):
            self.summary = event.summary

    def _stepped(self, event: StepEvent) -> None:
        self.step = max(self.step or 0, event.step)
        self.steps_total, self.epoch, self.lr = event.steps_total, event.epoch, event.lr
        if event.loss is not None and event.step > self._loss_step:
            self.loss, self._loss_step = event.loss, event.step
            self.losses.append(event.loss)
        if event.rank is None:
            return
        worker = self.workers[event.rank]
        worker.stepped(event)
        worker.state = "training"
        if event.rank == min(self.workers) and (total := self.speed) is not None:
            self.speeds.append(total)

    def _changed(self, event: StateEvent) -> None:
        detail = event.detail
        self.name = detail.get("name", self.name)
        self.world_size = detail.get("world_size", self.world_size)
        self.unit = detail.get("unit", self.unit)
        self.run_dir = detail.get("run_dir", self.run_dir)
        self.steps_total = detail.get("steps_total", self.steps_total)
        self.steps_per_epoch = detail.get("steps_per_epoch", self.steps_per_epoch)
        self.alone = detail.get("alone_samples_per_second", self.alone)
        self.step = detail.get("step", self.step)
        if event.rank is None:
            self.state = event.state
            if event.state == "restarting":
                self.failures.clear()
        else:
            worker = self.workers[event.rank]
            worker.state = event.state
            worker.device = detail.get("device", worker.device)

    def _evaluated(self, event: EvaluationEvent) -> None:
        if event.step <= self._evaluated_step:
            return  # every rank tells the same metrics
        self._evaluated_step = event.step
        self.metrics = named_metrics(event.metrics)
        for name, value in self.metrics.items():
            self.metric_history.setdefault(name, _history()).append(value)

    @property
    def speed(self) -> float | None:
        """Samples per second of all ranks together; None until every rank has told its own."""
        known = [w.speed for w in self.workers.values() if w.speed is not None]
        return sum(known) if known and len(known) == (self.world_size or len(self.workers)) else None

    @property
    def speed_up(self) -> float | None:
        """``speed`` over that of one worker alone; None where either isn't known."""
        return self.speed / self.alone if self.speed is not None and self.alone else None

    @property
    def epochs(self) -> int | None:
        """How many the training will have begun at its end."""
        if self.steps_total is None or not self.steps_per_epoch:
            return None
        return -(-self.steps_total // self.steps_per_epoch)

    @property
    def phase(self) -> str | None:
        """What most of the run does now: the ranks know better than the launcher while they train."""
        states = [w.state for w in self.workers.values() if w.state is not None]
        if self.summary is not None:
            return self.summary.get("status", self.state)
        if not states or self.state in ("stopping", "done", "failed"):
            return self.state
        busy = [state for state in states if state != "done"]  # rank 0 may still be saving
        return max(busy or states, key=(busy or states).count)

    @property
    def eta_s(self) -> float | None:
        """Seconds of training still to do, at the present step time of the slowest rank."""
        splits = [w.split.total_ms for w in self.workers.values() if w.split is not None]
        if not splits or self.step is None or self.steps_total is None:
            return None
        return max(self.steps_total - self.step, 0) * max(splits) / 1e3

    @property
    def cause(self) -> FailureEvent | None:
        """The first failure that isn't a consequence of another."""
        return next((f for f in self.failures if not f.consequence), None)

    @property
    def simulated(self) -> bool:
        return any((w.device or "").startswith("sim") for w in self.workers.values())

    def next_link(self, worker: Worker) -> tuple[int, Link] | None:
        """The neighbour that the worker sends to, and the link there."""
        peer = (worker.rank + 1) % (self.world_size or len(self.workers))
        link = worker.links.get(peer)
        return None if link is None else (peer, link)

    def of_host(self, worker: Worker) -> TelemetryEvent:
        """The newest telemetry of the worker's host."""
        return self.telemetry.get(worker.host or "", _NOTHING)

    def per_watt(self, worker: Worker) -> float | None:
        """Samples per joule of the worker's host: its speed over its GPU's power. None where that idles."""
        if self.use(worker)[0] != "GPU":
            return None
        speeds = [w.speed for w in self.workers.values() if w.host == worker.host]
        watts, known = self.of_host(worker).gpu_watts, [speed for speed in speeds if speed is not None]
        return sum(known) / watts if watts and len(known) == len(speeds) else None

    def use(self, worker: Worker) -> tuple[str, float | None]:
        """("GPU" | "CPU", percent) of the worker's host: of what it trains on, or may train on."""
        told = self.of_host(worker)
        if worker.device is not None and worker.device.lower().startswith("cpu"):
            return "CPU", told.cpu_percent
        return "GPU", told.gpu_percent
