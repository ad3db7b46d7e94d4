"""The curves in the run folder, as TensorBoard reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Mlrun

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_a_run_leaves_its_curves(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    run = mlrun("launch", spec(evaluate={"every_steps": 4}), "-np", "2")
    assert run.finish() == 0
    read = accumulator.EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()
    assert {
        "training/loss",
        "training/learning rate",
        "images per second/rank 0",
        "images per second/rank 1",
        "images per second/all",
        "validation/accuracy",
    } <= set(read.Tags()["scalars"])
    losses = {e["step"]: e["loss"] for e in run.said("StepEvent") if e["rank"] == 0 and e["loss"] is not None}
    curve = {e.step: e.value for e in read.Scalars("training/loss")}
    assert curve == pytest.approx(losses)
    assert len(curve) == 8
