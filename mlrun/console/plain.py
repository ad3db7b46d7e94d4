"""The plain view: a line every few seconds, and at once what can't wait. For logs, pipes and CI."""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console as Terminal
from rich.text import Text

from mlrun.console import text
from mlrun.console.base import Console
from mlrun.console.findings import findings
from mlrun.console.model import Run
from mlrun.console.result import failure_place, result
from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    FailureEvent,
    LogEvent,
    StateEvent,
    StepEvent,
)

EVERY_S = 5.0
LASTING_S = {"slower": 10.0}
"""How long a finding of a kind must have lasted to be told; the others are told at once."""
LEVEL_STYLES = {"warning": "yellow", "error": "red"}


class PlainConsole(Console):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal = Terminal(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._run = Run()
        self._printed_at: float | None = None
        self._told = {None, "evaluating", "saving", "stopped", "going on"}
        """States that need no line: already told, or followed by a line with their outcome."""
        self._since: dict[tuple[str, int | None], float] = {}
        self._warned: set[tuple[str, int | None]] = set()

    def _show(self, event: Event) -> None:
        before = self._run.metrics
        self._run.apply(event)
        self._warn()
        if isinstance(event, StepEvent):
            self._progress()
        elif isinstance(event, EvaluationEvent) and self._run.metrics is not before:
            told = "   ".join(f"{name} {text.number(value)}" for name, value in self._run.metrics.items())
            self._print(f"step {event.step:,}   {told}{'   best so far' if event.best else ''}")
        elif isinstance(event, CheckpointEvent):
            self._print(
                f"step {event.step:,}   saved {text.size(event.bytes)} in {event.seconds:.1f} s", "dim"
            )
        elif isinstance(event, StateEvent) and self._run.phase not in self._told:
            self._told.add(self._run.phase)
            self._print(f"{self._run.phase}")
        elif isinstance(event, LogEvent):
            self._print(log_line(event), LEVEL_STYLES.get(event.level))
        elif isinstance(event, FailureEvent) and not event.consequence:
            self._print(f"{failure_place(event)}: {text.clean(event.message)}", "red")

    def _warn(self) -> None:
        """Tell each finding once, as soon as it has lasted."""
        now, found = self._run.latest or 0.0, findings(self._run)
        self._since = {key: self._since.get(key, now) for f in found for key in [(f.kind, f.rank)]}
        for finding in found:
            key = finding.kind, finding.rank
            if key not in self._warned and now - self._since[key] >= LASTING_S.get(finding.kind, 0.0):
                self._warned.add(key)
                self._print(finding.text, LEVEL_STYLES["warning"])

    def _progress(self) -> None:
        now = time.monotonic()
        if self._printed_at is None and self._run.speed is None:
            return  # the first line waits for every rank's first figures
        if self._printed_at is not None and now - self._printed_at < EVERY_S:
            return
        self._printed_at = now
        self._print(progress_line(self._run))

    def _close(self) -> None:
        for line in result(self._run):
            self._terminal.print(line)

    def _print(self, line: str, style: str | None = None) -> None:
        if self._run.latest is not None:
            line = f"{time.strftime('%H:%M:%S', time.localtime(self._run.latest))}  {line}"
        self._terminal.print(Text(line, style=style or ""))


class ErrorsConsole(Console):
    """The view of ``off``: errors, and nothing of a run that goes well."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal = Terminal(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._run = Run()

    def _show(self, event: Event) -> None:
        self._run.apply(event)
        if isinstance(event, LogEvent) and event.level == "error":
            self._terminal.print(Text(log_line(event), style="red"))

    def _close(self) -> None:
        if self._run.failures:
            for line in result(self._run):
                self._terminal.print(line)


def progress_line(run: Run) -> str:
    parts = [f"step {run.step:,}/{run.steps_total:,}" if run.steps_total else f"step {run.step or 0:,}"]
    parts.append(f"{text.speed(run.speed)} {run.unit}/s{text.speed_up(run.speed_up)}")
    if run.loss is not None:
        parts.append(f"loss {text.number(run.loss)}")
    for worker in sorted(run.workers.values(), key=lambda w: w.rank):
        what, percent = run.use(worker)
        use = f" {what} {text.percent(percent)}" if percent is not None else ""
        parts.append(f"[{worker.rank}] {text.speed(worker.speed)}/s{use}")
    parts.append(f"left {text.duration(run.eta_s)}")
    return "   ".join(parts)


def log_line(event: LogEvent) -> str:
    where = "" if event.rank is None else f"rank {event.rank} | "
    if event.rank is None and event.host is not None:
        where = f"{event.host} | "
    level = f"{event.level}: " if event.level != "info" and event.source == "mlrun" else ""
    return f"{where}{level}{text.clean(event.text)}"
