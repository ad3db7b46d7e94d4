"""The training loop: the only one, for every framework.

It drives a Backend through global steps and, between them, reports, evaluates, checks that the replicas
agree, saves and decides when to end. All that is decided is decided alike on every rank: by the step number,
by values that are the same bits everywhere, or by flags agreed between the ranks while a step is computed.
"""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path
from typing import Any

import mlrun
from mlrun.backends.base import Backend, Evaluation, Shape
from mlrun.errors import RequestError
from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    LogEvent,
    StateEvent,
    StepEvent,
)
from mlrun.spec import JobSpec
from mlrun.spec.training import Evaluate
from mlrun.worker import checkpoint, resume, verdict
from mlrun.worker.best import BestSoFar
from mlrun.worker.context import Context, Flags
from mlrun.worker.meter import Every, Meter
from mlrun.worker.timeline import Timeline

REPORT_S = 1.0
"""Progress is reported at least about this often."""

LINKS_S = 5.0
"""Counters of the links are reported with the progress, at most this often."""

TOLD_LEFT_OUT = 20
"""Files named one by one by a rank that leaves out bad ones."""

MAX_SKIPPED_IN_A_ROW = 50
"""``on_nonfinite: skip`` is for rare bad steps; so many one after the other is a broken training."""


class TrainingLoop:
    """One training on one rank, from the first step (or a checkpoint) to the end."""

    def __init__(self, spec: JobSpec, backend: Backend, shape: Shape, context: Context) -> None:
        self._spec = spec
        self._backend = backend
        self._shape = shape
        self._context = context
        self._checkpoints = context.run_dir / "checkpoints"
        self._done_steps = 0
        self._meter = Meter()
        self._since_report = Every(REPORT_S)
        self._since_links = Every(LINKS_S)
        minutes = spec.checkpoint.every_minutes
        self._since_save = Every(minutes * 60 if minutes is not None else math.inf)
        self._best = BestSoFar(spec.evaluate or Evaluate())
        self._timeline: Timeline | None = Timeline(context.rank, context.host)
        self._loss: float | None = None
        self._metrics: dict[str, float] = {}
        self._evaluated = False
        self._hash: tuple[int, str] | None = None
        self._saved: tuple[int, Path] | None = None
        self._skipped = 0
        self._left_out = 0
        self._skipped_in_a_row = 0

    def run(self, resume_from: Path | None = None) -> dict[str, Any]:
        """Train to the end, or until the user wants to stop. Collective.

        Returns the detail of the ``done`` event: this rank's figures for the summary.

        Raises:
            RequestError: the checkpoint can't be gone on from, or there is nothing to evaluate on.
            VerdictError: other data on some rank, diverged replicas, or a step that wasn't finite.
            CommunicatorError: a peer was lost.
        """
        verdict.same_data(self._context, self._shape.data_fingerprint)
        if self._spec.evaluate is not None and not self._shape.validation_samples:
            raise RequestError(
                "evaluate is set, but there are no validation samples",
                fix="set data.val_split to 0.1, say, add validation data, or remove evaluate",
            )
        if resume_from is not None:
            self._load(resume_from)
        self._announce(resume_from)
        reason = "complete"
        while self._done_steps < self._shape.steps_total:
            flags = self._step()
            self._between_steps(flags)
            if flags.stop:
                reason = "stopped"
                break
            if self._best.out_of_patience:
                reason = "early-stop"
                break
        return self._finish(reason)

    # One step -----------------------------------------------------------------------------------

    def _step(self) -> Flags:
        """Compute one step; the flags travel meanwhile."""
        step = self._done_steps
        start = time.monotonic()
        wishes = Flags(
            stop=self._context.stop_reason() is not None,
            save=self._context.rank == 0 and self._since_save.due(),
        )
        pending = self._context.begin_flags(wishes, step)
        result = self._backend.step(step)
        computed = time.monotonic()
        flags = pending.wait()
        end = time.monotonic()
        self._meter.add(result, end - start, end - computed)
        self._done_steps += 1
        if self._timeline is not None:
            self._timeline.add(step, self._backend.spans())
            if self._timeline.full:
                self._write_timeline()
        return flags

    def _between_steps(self, flags: Flags) -> None:
        step = self._done_steps
        last = step == self._shape.steps_total or flags.stop
        if not self._backend.applied():
            self._not_applied(step - 1)
        self._report(read_loss=last or step == 1 or step % self._spec.log_every == 0)
        if step % self._shape.steps_per_epoch == 0:
            self._context.emit_data()
        if not flags.stop and self._evaluation_due(step):
            self._evaluate()
        self._tell_left_out()
        if step % self._spec.hash_every == 0:
            self._agreed_hash()
        if last or flags.save or self._best.out_of_patience or self._save_due(step):
            self._save()

    def _report(self, read_loss: bool) -> None:
        if not read_loss and not self._since_report.due():
            return
        loss: float | None = None
        if read_loss:
            start = time.monotonic()
            loss = self._finite(self._backend.loss())
            self._meter.extend(time.monotonic() - start)
            self._loss = loss
        split = self._meter.take_recent()
        self._since_report.restart()
        self._context.emit(
            StepEvent(
                step=self._done_steps,
                steps_total=self._shape.steps_total,
                epoch=self._epoch,
                steps=split.steps,
                samples=split.samples,
                seconds=split.seconds,
                data_s=split.data_s,
                compute_s=split.compute_s,
                comm_s=split.comm_s,
                lr=self._backend.learning_rate(),
                loss=loss,
            )
        )
        if self._since_links.due():
            self._context.emit_links()
            self._context.emit_data()
            self._since_links.restart()

    def _finite(self, loss: float | None) -> float | None:
        if loss is None or math.isfinite(loss):
            return loss
        self._log(f"the loss of step {self._done_steps - 1} is {loss}", level="warning")
        return None

    def _not_applied(self, step: int) -> None:
        """A step whose reduced gradient wasn't finite: stop the run, or count it and go on."""
        self._skipped += 1
        self._skipped_in_a_row += 1
        if self._spec.on_nonfinite == "skip" and self._skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            self._log(
                f"step {step} left out: its gradient isn't finite ({self._skipped} so far)", level="warning"
            )
            return
        raise verdict.nonfinite_step(self._context, self._backend.nonfinite(), step)

    def _tell_left_out(self) -> None:
        """Name the first files that this rank left out; the summary counts all."""
        found = self._backend.left_out()
        for reason in found[self._left_out : TOLD_LEFT_OUT]:
            self._context.emit(LogEvent(f"left out: {reason}", "warning"))
        self._left_out = len(found)

    # Between steps ------------------------------------------------------------------------------

    def _agreed_hash(self) -> str:
        """Hash of parameters and buffers after this step, the same on every rank; computed once per step."""
        if self._hash is None or self._hash[0] != self._done_steps:
            self._backend.agree()
            self._hash = (self._done_steps, self._backend.state_hash())
            verdict.same_replicas(self._context, self._hash[1], self._done_steps)
        return self._hash[1]

    def _evaluation_due(self, step: int) -> bool:
        rules = self._spec.evaluate
        if rules is None:
            return False
        ends = step == self._shape.steps_total
        return ends or self._periodic(step, rules.every_steps, rules.every_epochs)

    def _save_due(self, step: int) -> bool:
        rules = self._spec.checkpoint
        return self._periodic(step, rules.every_steps, rules.every_epochs)

    def _periodic(self, step: int, every_steps: int | None, every_epochs: int | None) -> bool:
        periods = (every_steps, every_epochs and every_epochs * self._shape.steps_per_epoch)
        return any(period and step % period == 0 for period in periods)

    def _evaluate(self) -> None:
        self._state("evaluating")
        start = time.monotonic()
        evaluation = self._backend.evaluate()
        self._metrics = {k: v for k, v in evaluation.metrics.items() if math.isfinite(v)}
        is_best = self._best.judge(evaluation.metrics)
        self._warn_of_monitor(evaluation)
        if self._context.rank == 0:
            self._context.emit(
                EvaluationEvent(
                    step=self._done_steps,
                    epoch=self._epoch,
                    metrics=self._metrics,
                    samples=evaluation.samples,
                    seconds=time.monotonic() - start,
                    best=is_best,
                )
            )
        if is_best and self._spec.checkpoint.keep_best:
            self._save()
            if self._context.rank == 0 and self._saved is not None:
                checkpoint.mark_best(self._checkpoints, self._saved[1])
        self._state("training")

    def _warn_of_monitor(self, evaluation: Evaluation) -> None:
        monitor = self._best.rules.monitor
        if not self._evaluated and monitor not in evaluation.metrics:
            known = ", ".join(evaluation.metrics)
            self._log(
                f"evaluate.monitor is {monitor!r}, but the evaluation gives {known}: none will be the best",
                level="warning",
            )
        self._evaluated = True

    def _save(self) -> None:
        """Rank 0 writes; the others wait, so that the time doesn't look like a slow step."""
        if self._saved is not None and self._saved[0] == self._done_steps:
            return
        self._state("saving")
        state = self._checkpoint_state()
        folder = self._checkpoints / checkpoint.folder_name(self._done_steps)
        if self._context.rank == 0:
            start = time.monotonic()
            checkpoint.write(self._checkpoints, state, self._backend.save)
            checkpoint.prune(self._checkpoints, self._spec.checkpoint.keep, self._done_steps)
            self._context.emit(
                CheckpointEvent(
                    step=self._done_steps,
                    path=str(folder),
                    bytes=checkpoint.size_of(folder),
                    seconds=time.monotonic() - start,
                )
            )
        self._context.barrier(f"saving after step {self._done_steps}")
        self._saved = (self._done_steps, folder)
        self._since_save.restart()
        self._state("training")

    def _checkpoint_state(self) -> checkpoint.State:
        return checkpoint.State(
            step=self._done_steps,
            epoch=self._done_steps // self._shape.steps_per_epoch,
            position=self._done_steps % self._shape.steps_per_epoch,
            seed=self._spec.seed,
            world_size=self._context.size,
            global_batch_size=self._shape.global_batch_size,
            model=resume.model_fingerprint(self._spec, self._shape),
            data=self._shape.data_fingerprint,
            hash=self._agreed_hash(),
            metrics=self._metrics,
            best=self._best.value,
            evaluations_since_best=self._best.evaluations_since,
            versions=self._versions(),
        )

    def _load(self, folder: Path) -> None:
        state = checkpoint.read(folder)
        notes = resume.check(folder, state, self._spec, self._shape, self._context.size)
        self._backend.load(folder)
        loaded = self._backend.state_hash()
        resume.check_hash(folder, state, loaded)
        self._state(
            "resumed", step=state.step, hash=loaded, saved_hash=state.hash, world_size_was=state.world_size
        )
        for note in notes:
            self._log(note)
        self._done_steps = state.step
        self._metrics = dict(state.metrics)
        self._best.value = state.best
        self._best.evaluations_since = state.evaluations_since_best
        self._saved = (state.step, folder)

    # Start and end ------------------------------------------------------------------------------

    def _announce(self, resume_from: Path | None) -> None:
        shape = self._shape
        self._state(
            "training",
            unit=self._backend.unit,
            device=shape.device,
            parameters=shape.parameters,
            steps_total=shape.steps_total,
            steps_per_epoch=shape.steps_per_epoch,
            train_samples=shape.train_samples,
            validation_samples=shape.validation_samples,
            batch_size=shape.batch_size,
            global_batch_size=shape.global_batch_size,
            step=self._done_steps,
            resumed_from=str(resume_from) if resume_from is not None else None,
        )
        if shape.global_batch_size > shape.train_samples:
            self._log(
                f"the global batch of {shape.global_batch_size} is more than all training samples, "
                f"{shape.train_samples}: a step takes them all",
                level="warning",
            )

    def _finish(self, reason: str) -> dict[str, Any]:
        if self._timeline is not None:
            self._write_timeline()
        self._context.emit_links()
        self._context.emit_data()
        total = self._meter.total
        detail = {
            "reason": reason,
            "step": self._done_steps,
            "epoch": self._epoch,
            "samples": total.samples,
            "samples_per_second": self._meter.samples_per_second(),
            "unit": self._backend.unit,
            "seconds": total.seconds,
            "data_s": total.data_s,
            "compute_s": total.compute_s,
            "comm_s": total.comm_s,
            "loss": self._loss,
            "metrics": self._metrics,
            "best": {self._best.rules.monitor: self._best.value} if self._best.value is not None else None,
            "hash": self._agreed_hash(),
            "hashes_agree": True if self._context.size > 1 else None,
            "checkpoint": str(self._saved[1]) if self._saved is not None else None,
            "skipped_steps": self._skipped,
            "left_out": self._left_out_by_all(),
            "device": self._shape.device,
            "versions": self._versions(),
            "parameters": self._shape.parameters,
            "world_size": self._context.size,
            "batch_size": self._shape.batch_size,
            "global_batch_size": self._shape.global_batch_size,
        }
        self._state("done", **detail)
        return detail

    def _left_out_by_all(self) -> int:
        """How many files or rows were left out by any rank. Collective."""
        if self._spec.data.on_bad_file != "skip":
            return 0
        return len(set().union(*self._context.gather(list(self._backend.left_out()), "what was left out")))

    def _versions(self) -> dict[str, Any]:
        mine = {"mlrun": mlrun.__version__, "python": platform.python_version()}
        return {**mine, **self._backend.versions()}

    @property
    def _epoch(self) -> int:
        """Epoch of the last step."""
        return max(0, self._done_steps - 1) // self._shape.steps_per_epoch

    def _write_timeline(self) -> None:
        assert self._timeline is not None
        self._timeline.write(self._context.run_dir)
        self._timeline = None

    def _state(self, state: str, **detail: Any) -> None:
        self._context.emit(StateEvent(state, detail))

    def _log(self, text: str, level: str = "info") -> None:
        """A line for people; what all ranks know is said once."""
        if self._context.rank == 0:
            self._context.emit(LogEvent(text, level))
