"""A small real training for the loop: linear regression in numpy, averaged over a real communicator."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlrun.allreduce.communicator import Buffer, Communicator
from mlrun.allreduce.links import Listener
from mlrun.backends.base import Backend, Evaluation, Shape, Span, StepResult
from mlrun.errors import RequestError
from mlrun.protocol import Event, Plan
from mlrun.spec import JobSpec
from mlrun.worker.context import Context
from mlrun.worker.loop import TrainingLoop
from mlrun.worker.verdict import VerdictError

SAMPLES, FEATURES = 64, 5


class LinearBackend(Backend):
    """Least squares by SGD with momentum, and what can go wrong with it, from ``data.args``:

    nan_at: [step, rank] · other_data_on: rank · nudge: [step, rank], one rank's weights change on their own ·
    validation: how many validation samples there are
    """

    unit = "samples"

    def build(self, spec: JobSpec, communicator: Communicator | None, local_rank: int) -> Shape:
        self.spec, self.communicator = spec, communicator
        self.rank = communicator.rank if communicator else 0
        self.size = communicator.size if communicator else 1
        self.flaws = spec.data.args
        rng = np.random.default_rng(1 if self.flaws.get("other_data_on") == self.rank else 0)
        self.x = rng.normal(size=(SAMPLES, FEATURES))
        self.y = self.x @ np.arange(1.0, FEATURES + 1)
        self.weights, self.velocity = np.zeros(FEATURES), np.zeros(FEATURES)
        self.batch = spec.global_batch_size or 8
        self.per_epoch = -(-SAMPLES // self.batch)
        self.steps_total = spec.steps or (spec.epochs or 1) * self.per_epoch
        self.was_applied, self.last_loss, self.last_spans = True, 0.0, list[Span]()
        return Shape(
            steps_per_epoch=self.per_epoch,
            steps_total=self.steps_total,
            batch_size=len(range(self.rank, self.batch, self.size)),
            global_batch_size=self.batch,
            train_samples=SAMPLES,
            validation_samples=self.flaws.get("validation", SAMPLES),
            parameters=FEATURES,
            data_fingerprint=hashlib.sha256(self.x.tobytes()).hexdigest(),
            device="cpu",
        )

    def step(self, step: int) -> StepResult:
        start = time.monotonic()
        order = np.random.default_rng([self.spec.seed, step // self.per_epoch]).permutation(SAMPLES)
        at = step % self.per_epoch * self.batch
        mine = order[at : at + self.batch][self.rank :: self.size]
        x = self.x[mine]
        if self.flaws.get("nan_at") == [step, self.rank]:
            x = x * np.nan
        error = x @ self.weights - self.y[mine]
        self.own = np.append(2 * error @ x, error @ error) / self.batch
        total = self.own.copy()
        sent = time.monotonic()
        if self.communicator:
            self.communicator.all_reduce(Buffer.of(total), name="gradient").wait()
        end = time.monotonic()
        self.last_spans = [Span("backward", start, end), Span("all_reduce:0", sent, end)]
        self.last_loss = float(total[-1])
        self.was_applied = bool(np.isfinite(total).all()) or self.spec.on_nonfinite == "ignore"
        if self.was_applied:
            self.velocity = 0.5 * self.velocity + total[:-1]
            self.weights = self.weights - self.spec.optimizer.lr * self.velocity
        if self.flaws.get("nudge") == [step, self.rank]:
            self.weights[0] += 1e-12
        return StepResult(len(mine), 0.0, sent - start, end - sent)

    def loss(self) -> float:
        return self.last_loss

    def applied(self) -> bool:
        return self.was_applied

    def nonfinite(self) -> str | None:
        return None if np.isfinite(self.own).all() else "loss"

    def spans(self) -> list[Span]:
        return self.last_spans

    def learning_rate(self) -> float:
        return self.spec.optimizer.lr

    def evaluate(self) -> Evaluation:
        error = self.x @ self.weights - self.y
        return Evaluation({"loss": float(error @ error / SAMPLES)}, SAMPLES)

    def state_hash(self) -> str:
        return hashlib.sha256(self.weights.tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        np.save(folder / "weights.npy", np.stack([self.weights, self.velocity]))

    def load(self, folder: Path) -> None:
        self.weights, self.velocity = np.load(folder / "weights.npy")

    def rebind(self, communicator: Communicator | None) -> Shape:
        raise RequestError("the linear backend keeps its membership")

    def versions(self) -> dict[str, Any]:
        return {"numpy": np.__version__}

    def close(self) -> None:
        return


@dataclass
class Rank:
    """What one rank of a training said and how it ended."""

    events: list[Event] = field(default_factory=list)
    detail: dict[str, Any] | None = None
    error: Exception | None = None
    backend: LinearBackend = field(default_factory=LinearBackend)

    def said(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


Train = Callable[..., list[Rank]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train on ``ranks`` threads joined by the real ring; returns one Rank each.

    ``stop(rank, events)``: asked once per step, gives the reason to stop or None.
    """

    def run(
        ranks: int = 1,
        *,
        resume_from: Path | None = None,
        stop: Callable[[int, list[Event]], str | None] = lambda rank, events: None,
        **keys: Any,
    ) -> list[Rank]:
        fields: dict[str, Any] = {"name": "line", "model": {"name": "linear"}, "global_batch_size": 8}
        fields |= {"optimizer": {"lr": 0.05}, **keys}
        if "epochs" not in fields:
            fields.setdefault("steps", 20)
        spec = JobSpec.model_validate(fields)
        results = [Rank() for _ in range(ranks)]

        def one(rank: int, communicator: Communicator | None) -> None:
            result = results[rank]
            try:
                shape = result.backend.build(spec, communicator, rank)
                context = Context(
                    rank=rank,
                    size=ranks,
                    host=f"host{rank}",
                    run_dir=tmp_path,
                    group=communicator.split(range(ranks)) if communicator else None,
                    send=result.events.append,
                    stop_reason=lambda: stop(rank, result.events),
                )
                result.detail = TrainingLoop(spec, result.backend, shape, context).run(resume_from)
            except Exception as error:  # the test asserts on it
                result.error = error
                if communicator and not isinstance(error, VerdictError):
                    communicator.abort(str(error))

        if ranks == 1:
            one(0, None)
        else:
            _on_threads(ranks, one)
        return results

    return run


def _on_threads(ranks: int, work: Callable[[int, Communicator], None]) -> None:
    from mlrun.allreduce import engines  # noqa: PLC0415 - tests of one rank don't need the native core

    listeners = [Listener(["127.0.0.1"]) for _ in range(ranks)]
    plan = Plan(0, "ring", [li.endpoints for li in listeners], [f"host{r}" for r in range(ranks)])
    secret = secrets.token_hex(32)

    def one(rank: int) -> None:
        communicator = engines.connect(plan, rank, listeners[rank], secret)
        try:
            work(rank, communicator)
        finally:
            communicator.close()

    threads = [threading.Thread(target=one, args=[r], daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for listener in listeners:
        listener.close()
    assert not any(t.is_alive() for t in threads), "a rank hangs"


@pytest.fixture
def trace() -> Callable[[Path], list[dict[str, Any]]]:
    def read(path: Path) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        return events

    return read
