"""Macs made of sleep: real processes and real communication, and no doubt about what is simulated."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.launch.conftest import Mlrun, Run


@pytest.fixture
def sim(spec: Callable[..., str]) -> Callable[..., str]:
    def write(**keys: Any) -> str:
        fast = {"framework": "sim", "model": {"name": "resnet18"}, "data": {}, "steps": 4}
        return spec(**{**fast, "sim": {"samples_per_second": 400}, **keys})

    return write


def test_unequal_simulated_workers_train_together(mlrun: Mlrun, sim: Callable[..., str]) -> None:
    run = mlrun("launch", sim(sim={"samples_per_second": [400, 400, 200]}), "-np", "3")
    assert run.finish() == 0
    summary = run.summary
    assert summary["hashes_agree"]
    assert (summary["unit"], summary["device"], summary["loss"]) == ("images", "simulated", None)
    assert summary["versions"]["framework"] == "sim"
    slow = summary["ranks"][2]
    assert slow["compute_s"] >= slow["samples"] / 200  # a sleep ends late, and never early
    assert [event["loss"] for event in run.said("StepEvent")] == [None] * len(run.said("StepEvent"))


def test_speeds_must_fit_the_workers(mlrun: Mlrun, sim: Callable[..., str]) -> None:
    run = mlrun("launch", sim(sim={"samples_per_second": [400, 400]}), "-np", "3")
    assert run.finish() == 2
    assert "2 speeds, and the run 3 workers" in run.said("FailureEvent")[0]["message"]


def test_a_simulated_run_goes_on_from_its_checkpoint(mlrun: Mlrun, sim: Callable[..., str]) -> None:
    first = mlrun("launch", sim(steps=2), "-np", "2")
    assert first.finish() == 0
    saved = first.summary["parameter_hash"]
    run = mlrun("resume", "last", "--set", "steps=4", "-np", "2")
    assert run.finish() == 0
    assert run.summary["parameter_hash"] == saved
    assert run.summary["step"] == 4


def test_the_screen_says_simulated(tmp_path: Any, sim: Callable[..., str]) -> None:
    command = [sys.executable, "-m", "mlrun.cli", "launch", sim(), "-np", "1", "--console", "plain"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "small (simulated)" in done.stdout
    assert "safetensors" not in done.stdout


def test_a_smoke_run_needs_no_loss_where_nothing_is_learnt(mlrun: Mlrun, sim: Callable[..., str]) -> None:
    run = mlrun("launch", sim(), "--smoke")
    assert run.finish() == 0


def test_the_speed_up_over_one_worker_is_told_where_it_is_known(
    mlrun: Mlrun, sim: Callable[..., str]
) -> None:
    def trained(samples: int, workers: int) -> Run:
        run = mlrun("launch", sim(global_batch_size=samples), "-np", str(workers))
        assert run.finish() == 0
        return run

    alone, _ = trained(4, 1), trained(8, 1)
    together = trained(8, 2)
    detail = together.said("StateEvent")[0]["detail"]
    assert detail["alone_samples_per_second"] == alone.summary["samples_per_second"]
    assert f" in {alone.folder.name}" in together.said("LogEvent")[0]["text"]
    shown = subprocess.run(
        [sys.executable, "-m", "mlrun.cli", "replay", str(together.folder), "--console", "plain"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert re.search(r"images/s +[\d.]+ [\d.]+×   rank 0", shown.stdout), shown.stdout + shown.stderr
