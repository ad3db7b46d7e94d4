"""Launch a run or go on with one, and see it through: the one way in from the command line."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlrun import index, runs
from mlrun.agent.awake import keep_awake
from mlrun.console import Console, open_console
from mlrun.errors import ExitCode, MlrunError, RequestError, RunFailedError
from mlrun.hosts import Host, spec_entry
from mlrun.launch.alone import run_alone
from mlrun.launch.generation import Generation
from mlrun.launch.here import on_this_machine
from mlrun.launch.hooks import run_hook
from mlrun.launch.readiness import lid_note
from mlrun.launch.record import Record
from mlrun.launch.resolve import Resolved, resolve
from mlrun.launch.summary import Summary
from mlrun.probe.system import is_portable
from mlrun.protocol import (
    FailureEvent,
    LogEvent,
    StateEvent,
    SummaryEvent,
)
from mlrun.spec import JobSpec
from mlrun.specfile import load

LEASE_S = 30.0
SMOKE_STEPS_MORE = 2
"""Steps that a smoke run goes on for after its checkpoint was loaded again."""

_SIGNALS = {
    signal.SIGINT: (ExitCode.INTERRUPTED, "Ctrl-C"),
    signal.SIGTERM: (ExitCode.TERMINATED, "SIGTERM"),
    signal.SIGHUP: (ExitCode.TERMINATED, "the terminal is gone"),
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. ``summary`` is the content of summary.json."""

    exit_code: ExitCode
    summary: dict[str, Any]
    run_dir: Path


def launch(
    spec: JobSpec,
    *,
    np: int | None = None,
    console: str = "live",
    log_ranks: Collection[int] | None = None,
    runs_dir: Path = Path("runs"),
    smoke: bool = False,
    lease_s: float = LEASE_S,
    begun: Callable[[Path], None] = lambda _: None,
) -> RunResult:
    """Train ``spec`` with ``np`` workers in a new run folder; returns when nothing of it runs any more.

    ``log_ranks``: whose output the console shows; all of it is in the run folder.
    ``smoke``: afterwards also load the last checkpoint and go on for two steps.
    ``begun`` is told the run folder once events are written there.

    Raises:
        RequestError, RefusedError: nothing was started.
        RunFailedError: no agent could be started, or the run folder can't be written.
    """
    resolved = resolve(spec, np, smoke=smoke)
    view = _view(console, log_ranks)
    if hidden := runs.secrets_of(resolved.spec):
        those = ", ".join(f"env.{name}" for name in hidden)
        resolved.notes.append(f"not in the run folder: {those}; a resume takes them from its own environment")
    run_dir = runs.create(runs_dir, spec.name)
    runs.write_spec(run_dir, resolved.spec)
    index.note(run_dir, smoke=smoke)
    run = _Run(resolved, run_dir, view, lease_s, smoke=smoke)
    begun(run_dir)
    return run.see_through(resume_from=None)


def resume(
    run: str,
    *,
    overrides: list[str] | None = None,
    np: int | None = None,
    hosts: Sequence[Host] = (),
    console: str = "live",
    log_ranks: Collection[int] | None = None,
    runs_dir: Path = Path("runs"),
    lease_s: float = LEASE_S,
) -> RunResult:
    """Go on with ``run`` (see ``index.find``) from its last checkpoint, in the same folder.

    ``hosts``: where to train now, when not where it did before.

    Raises:
        RequestError: no such run, no checkpoint in it, nothing left to train, or overrides that change the
            model or the data.
    """
    run_dir = index.find(runs_dir, run)
    before = load(run_dir / runs.SPEC_FILE)
    spec = load(run_dir / runs.SPEC_FILE, overrides or [])
    if hosts:
        spec = spec.model_copy(update={"hosts": [spec_entry(host) for host in hosts]})
    for block in ("model", "data", "task", "framework"):
        if getattr(before, block) != getattr(spec, block):
            raise RequestError(
                f"{run_dir.name} was trained with another {block}",
                fix=f"leave {block} as it is, or launch a new run",
            )
    checkpoint = runs.latest_checkpoint(run_dir)
    if checkpoint is None:
        raise RequestError(f"{run_dir.name} has no checkpoint to go on from", fix="launch it again")
    _refuse_complete(run_dir, before, spec)
    resolved = resolve(spec, np)
    was = resolve(before, None).world_size
    if was != resolved.world_size:
        resolved.notes.insert(0, f"going on with {resolved.world_size} workers, before there were {was}")
    view = _view(console, log_ranks)
    runs.write_spec(run_dir, resolved.spec)
    index.note(run_dir)
    return _Run(resolved, run_dir, view, lease_s, smoke=False).see_through(resume_from=checkpoint)


def _view(console: str, log_ranks: Collection[int] | None) -> Console:
    view = open_console(console)
    if log_ranks is not None:
        view.show_output_of(log_ranks)
    return view


def _refuse_complete(run_dir: Path, before: JobSpec, spec: JobSpec) -> None:
    """A run at its end has nothing to go on with unless more is asked for; its summary stays as it is."""
    summary = runs.read_summary(run_dir)
    key = "steps" if spec.steps is not None else "epochs"
    was, now = getattr(before, key), getattr(spec, key)
    complete = (summary.get("status"), summary.get("reason")) == ("done", "complete")
    if complete and was is not None and now <= was:
        raise RequestError(
            f"{run_dir.name} is complete: {summary['step']} steps",
            fix=f"to train longer: mlrun resume {run_dir.name} --set {key}={2 * now}",
        )


class _Run:
    """One call of ``launch`` or ``resume``."""

    def __init__(
        self, resolved: Resolved, run_dir: Path, console: Console, lease_s: float, *, smoke: bool
    ) -> None:
        self._resolved = resolved
        self._run_dir = run_dir
        self._lease_s = lease_s
        self._smoke = smoke
        self._record = Record(run_dir, console, Summary(resolved, run_dir))
        self._here: set[str] = set()
        self._generation: Generation | None = None

    def see_through(self, resume_from: Path | None) -> RunResult:
        try:
            self._announce(resume_from)
            exit_code = self._train_or_tell(resume_from)
            ahead = self._generation.clocks_ahead() if self._generation is not None else {}
            runs.merge_timelines(self._run_dir, ahead)
            summary = self._record.summary.build(exit_code)
            runs.write_summary(self._run_dir, summary)
            told = run_hook(self._resolved.spec.hooks, self._run_dir, summary)
            if told is not None:
                self._record.show(told)
            self._record.show(SummaryEvent(summary))
        finally:
            self._record.close()
        return RunResult(exit_code, summary, self._run_dir)

    def _announce(self, resume_from: Path | None) -> None:
        alone = run_alone(self._resolved)
        detail = {
            "name": self._resolved.spec.name,
            "world_size": self._resolved.world_size,
            "run_dir": str(self._run_dir),
            "resume_from": str(resume_from) if resume_from else None,
            "alone_samples_per_second": alone[1] if alone else None,
        }
        self._record.show(StateEvent("starting", detail))
        if alone:
            told = f"speed-ups are over one worker's {alone[1]:,.1f} per second in {alone[0]}"
            self._record.show(LogEvent(told))
        for note in self._resolved.notes:
            self._record.show(LogEvent(note))

    def _train_or_tell(self, resume_from: Path | None) -> ExitCode:
        try:
            return asyncio.run(self._train(resume_from))
        except MlrunError as error:
            self._record.show(FailureEvent("refused", str(error)))
            return error.exit_code

    async def _train(self, resume_from: Path | None) -> ExitCode:
        _on_signals(self._interrupt)
        keep_awake()
        self._here = await asyncio.to_thread(on_this_machine, self._resolved.hosts)
        if is_portable():
            first = self._resolved.hosts[0].name
            self._record.show(LogEvent(lid_note(None if first in self._here else first), "warning"))
        exit_code = await self._generate_again(resume_from)
        if self._smoke and exit_code is ExitCode.DONE:
            exit_code = await self._prove()
        return exit_code

    async def _generate_again(self, resume_from: Path | None) -> ExitCode:
        """Run generations until one doesn't fail, or the restarts are used up."""
        restarts = self._resolved.spec.restarts
        for number in range(restarts + 1):
            try:
                exit_code = await self._generate(self._resolved, resume_from, number)
            except RunFailedError as error:
                if number == restarts:
                    raise
                self._record.show(FailureEvent("refused", str(error)))
                exit_code = error.exit_code
            if exit_code is not ExitCode.RUN_FAILED or number == restarts:
                break
            resume_from = runs.latest_checkpoint(self._run_dir) or resume_from
            self._restart(number + 1, resume_from)
        return exit_code

    def _restart(self, number: int, resume_from: Path | None) -> None:
        """The failure so far is told and written, but no longer how the run ends."""
        begin = f"going on from {resume_from.name}" if resume_from is not None else "from the first step"
        text = f"restart {number} of {self._resolved.spec.restarts}: {begin}"
        self._record.show(LogEvent(text, "warning"))
        self._record.show(StateEvent("restarting", {"restart": number}))

    async def _generate(self, resolved: Resolved, resume_from: Path | None, number: int) -> ExitCode:
        self._generation = Generation(
            resolved,
            self._run_dir,
            self._record,
            here=self._here,
            number=number,
            resume_from=resume_from,
            lease_s=self._lease_s,
            smoke=self._smoke,
        )
        return await self._generation.run()

    async def _prove(self) -> ExitCode:
        """A smoke run's proof: the loss is finite, and its checkpoint loads and trains on."""
        checkpoint = runs.latest_checkpoint(self._run_dir)
        first = self._record.summary.build(ExitCode.DONE)
        learns = self._resolved.spec.framework != "sim"
        if learns and not _finite(first["loss"]):
            return self._unproven(f"the loss is {first['loss']} after step {first['step']}")
        if checkpoint is None:
            return self._unproven("no checkpoint was written")
        more = {"steps": first["step"] + SMOKE_STEPS_MORE, "epochs": None}
        resolved = dataclasses.replace(
            self._resolved, spec=self._resolved.spec.model_copy(update=more), notes=[]
        )
        self._record.show(LogEvent(f"smoke: loading {checkpoint.name} and going on to step {more['steps']}"))
        exit_code = await self._generate(resolved, checkpoint, 1)
        last = self._record.summary.build(exit_code)
        well = (_finite(last["loss"]) or not learns) and last["step"] == more["steps"]
        if exit_code is ExitCode.DONE and not well:
            return self._unproven(f"resumed, it came to step {last['step']} with loss {last['loss']}")
        return exit_code

    def _unproven(self, message: str) -> ExitCode:
        self._record.show(FailureEvent("exit", f"smoke: {message}"))
        return ExitCode.RUN_FAILED

    def _interrupt(self, exit_code: ExitCode, word: str) -> None:
        if self._generation is not None:
            self._generation.interrupt(exit_code, word)


def _on_signals(interrupt: Callable[[ExitCode, str], None]) -> None:
    """Ctrl-C and its like stop the run in good order; what was ignored before (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number, (exit_code, word) in _SIGNALS.items():
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, interrupt, exit_code, word)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
