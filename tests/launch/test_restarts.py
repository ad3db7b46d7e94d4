"""Runs that go on by themselves after a failure, and commands at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlrun.launch import hooks
from mlrun.spec.cluster import Hooks
from tests.launch.conftest import Mlrun, Run

SAVED_OFTEN = {"steps": 24, "checkpoint": {"every_steps": 4}}


def worker(run: Run, rank: int) -> psutil.Process:
    workers = [p for p in run.children() if "mlrun.worker" in p.cmdline()]
    return next(p for p in workers if p.environ()["MLRUN_LOCAL_RANK"] == str(rank))


def test_a_killed_worker_costs_no_bit(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    unbroken = mlrun("launch", spec(**SAVED_OFTEN), "-np", "2")
    assert unbroken.finish() == 0
    wanted = unbroken.summary["parameter_hash"]

    run = mlrun("launch", spec(**SAVED_OFTEN, trouble={"pause_s": 0.05}), "-np", "2", "--max-restarts", "1")
    run.until("CheckpointEvent", step=8)
    worker(run, 1).kill()
    assert run.finish() == 0
    summary = run.summary
    assert summary["parameter_hash"] == wanted
    assert (summary["status"], summary["failure"], summary["restarts"]) == ("done", None, 1)
    assert any("restart 1 of 1: going on from step-000000" in e["text"] for e in run.said("LogEvent"))
    assert run.said("FailureEvent")[0]["rank"] == 1  # it stays in the record


def test_restarts_are_used_up(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    run = mlrun("launch", spec(restarts=1, trouble={"what": "raise"}), "-np", "2")
    assert run.finish() == 1
    assert run.summary["restarts"] == 1
    assert "sample 17 is broken" in run.summary["failure"]["message"]


def test_a_wrong_request_is_not_tried_again(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    run = mlrun("launch", spec(restarts=3, model={"name": "resnet99"}))
    assert run.finish() == 2
    assert run.summary["restarts"] == 0


def test_a_hook_runs_after_the_summary_is_written(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    command = 'grep -c parameter_hash "$MLRUN_RUN_DIR/summary.json" && echo "it is $MLRUN_STATUS"'
    run = mlrun("launch", spec(hooks={"done": command}))
    assert run.finish() == 0
    assert (run.folder / "hook.log").read_text() == "1\nit is done\n"


@pytest.mark.parametrize("command", ["exit 7", "no-such-command-here"])
def test_a_hook_that_fails_changes_nothing(mlrun: Mlrun, spec: Callable[..., str], command: str) -> None:
    run = mlrun("launch", spec(hooks={"done": command, "failed": "exit 1"}))
    assert run.finish() == 0
    assert any("the run is done all the same" in event["text"] for event in run.said("LogEvent"))


def test_a_failed_run_has_its_own_hook(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    job = spec(hooks={"done": "echo no", "failed": "echo $MLRUN_STATUS"}, trouble={"what": "raise"})
    run = mlrun("launch", job)
    assert run.finish() == 1
    assert (run.folder / "hook.log").read_text() == "failed\n"


def test_a_hook_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    command = "sleep 600 & echo $! > pid; wait"
    told = hooks.run_hook(
        Hooks(done=f"cd {tmp_path}; {command}"), tmp_path, {"status": "done"}, timeout_s=1.0
    )
    assert told is not None
    assert "was ended after 1 s" in told.text
    psutil.wait_procs([p for p in psutil.process_iter() if p.pid == int((tmp_path / "pid").read_text())], 10)
    left = [p for p in psutil.process_iter() if p.pid == int((tmp_path / "pid").read_text())]
    assert all(p.status() == psutil.STATUS_ZOMBIE for p in left)
