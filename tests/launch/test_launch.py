"""Runs from start to end: the good one, every way to fail, and every way to stop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import psutil
import pytest

from mlrun import runs
from mlrun.specfile import load

from .conftest import Mlrun

Spec = Callable[..., str]


def test_two_workers_train_one_model(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(evaluate={"every_steps": 4}), "-np", "2")

    assert run.finish() == 0
    summary = run.summary
    assert {"mlrun", "python", "torch"} <= summary["versions"].keys()
    assert (summary["status"], summary["world_size"], summary["step"]) == ("done", 2, 8)
    assert summary["hashes_agree"] is True
    assert summary["parameter_hash"]
    assert [rank["samples"] for rank in summary["ranks"]] == [128, 128]
    assert sum(summary["time_split"].values()) == pytest.approx(1)
    assert 0 <= summary["metrics"]["accuracy"] <= 1
    assert "global batch 32: 16 per worker, lr unchanged 0.05" in [e["text"] for e in run.said("LogEvent")]


def test_the_run_folder_tells_everything(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(), "-np", "2")
    run.finish()

    lines = (run.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.events
    again = load(run.folder / "spec.yaml")
    assert (again.hosts, again.steps) == (["localhost:2"], 8)
    ranks = {event["pid"] for event in json.loads((run.folder / "timeline.json").read_text())["traceEvents"]}
    assert ranks == {0, 1}
    assert runs.latest_checkpoint(run.folder) == run.folder / "checkpoints" / "step-00000008"
    secrets = [path for path in run.folder.rglob("*") if path.is_file() and b'"secret"' in path.read_bytes()]
    assert not secrets


def test_kill_9_of_one_of_four_ends_all_within_ten_seconds(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(steps=10_000, trouble={"pause_s": 0.02}), "-np", "4")
    run.until("StepEvent", step=lambda step: step >= 3)
    children = run.children()
    victim = next(c for c in children if c.environ().get("MLRUN_LOCAL_RANK") == "2")

    victim.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert run.finish() == 1
    cause, *rest = run.said("FailureEvent")
    assert (cause["rank"], cause["kind"], cause["consequence"]) == (2, "signal", False)
    assert "SIGKILL" in cause["message"]
    assert all(failure["consequence"] for failure in rest)


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("raise", "exception", "ValueError: sample 17 is broken"),
        ("raise speechless", "exception", "Speechless"),
        ("exit", "exit", "exit code 3"),
        ("leave", "exit", "exit code 0 before the training was done"),
    ],
)
def test_the_rank_at_fault_is_named(mlrun: Mlrun, spec: Spec, what: str, kind: str, message: str) -> None:
    run = mlrun("launch", spec(trouble={"what": what, "rank": 1}), "-np", "2")

    assert run.finish() == 1
    cause, *rest = run.said("FailureEvent")
    assert (cause["rank"], cause["kind"]) == (1, kind)
    assert message in cause["message"]
    assert all(failure["consequence"] for failure in rest)
    assert run.summary["failure"]["rank"] == 1
    if what == "raise":
        assert cause["last_lines"][-1] == "ValueError: sample 17 is broken"


def test_a_thread_left_behind_doesnt_keep_a_run_that_is_done(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(trouble={"what": "linger"}), "-np", "1")
    assert run.finish() == 0
    assert run.summary["status"] == "done"


def test_a_silent_rank_ends_the_run_and_is_named(mlrun: Mlrun, spec: Spec) -> None:
    job = spec(trouble={"what": "freeze", "rank": 1}, allreduce={"heartbeat_s": 2, "progress_timeout_s": 4})
    run = mlrun("launch", job, "-np", "2")

    assert run.finish() == 1
    cause = run.said("FailureEvent")[0]
    assert cause["kind"] in ("lost-host", "timeout")
    assert "rank 1" in cause["message"]


def test_ctrl_c_finishes_the_step_and_saves(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(steps=10_000, trouble={"pause_s": 0.02}), "-np", "2")
    run.until("StepEvent", step=lambda step: step >= 3)

    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert (run.summary["status"], run.summary["reason"]) == ("stopped", "stopped")
    checkpoint = runs.latest_checkpoint(run.folder)
    assert checkpoint is not None
    assert json.loads((checkpoint / "state.json").read_text())["step"] == run.summary["step"]


def test_the_second_signal_ends_at_once(mlrun: Mlrun, spec: Spec) -> None:
    """A frozen worker can't stop in good order."""
    # What the worker told of its first steps must have left it before it freezes.
    run = mlrun("launch", spec(trouble={"what": "freeze", "pause_s": 0.5}), "-np", "1")
    run.until("StepEvent")
    children = run.children()

    run.process.send_signal(signal.SIGTERM)
    run.until("StateEvent", state="stopping")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 143
    assert not psutil.wait_procs(children, timeout=0)[1]


def test_a_killed_launcher_leaves_nothing(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(steps=10_000, trouble={"pause_s": 0.02}), "-np", "1")
    run.until("StepEvent")
    children = run.children()
    assert len(children) >= 2

    run.process.kill()
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_a_killed_agent_ends_the_run(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(steps=10_000, trouble={"pause_s": 0.02}), "-np", "1")
    run.until("StepEvent")
    children = run.children()

    next(c for c in children if "mlrun.agent" in c.cmdline()).kill()
    assert run.finish() == 1
    assert run.said("FailureEvent")[0]["kind"] == "lost-host"
    assert not psutil.wait_procs(children, timeout=0)[1]


def test_a_killed_and_resumed_run_ends_like_an_unbroken_one(mlrun: Mlrun, spec: Spec) -> None:
    job = spec(steps=12, checkpoint={"every_steps": 4}, trouble={"pause_s": 0.2})
    whole = mlrun("launch", job, "-np", "2", "--runs-dir", "whole")
    half = mlrun("launch", job, "-np", "2", "--runs-dir", "half")
    half.until("CheckpointEvent", step=4)
    next(c for c in half.children() if c.environ().get("MLRUN_LOCAL_RANK") == "1").kill()
    assert half.finish() == 1
    log_before = (half.folder / "rank-0.log").read_bytes()

    rest = mlrun("resume", "last", "--runs-dir", "half")
    assert rest.finish() == 0
    assert whole.finish() == 0
    assert rest.folder == half.folder
    assert rest.said("StateEvent")[0]["detail"]["resume_from"].endswith("step-00000004")
    assert rest.summary["parameter_hash"] == whole.summary["parameter_hash"]
    events = (half.folder / "events.jsonl").read_text().splitlines()
    assert len(events) == len(half.events) + len(rest.events)
    assert (half.folder / "rank-0.log").read_bytes().startswith(log_before)


def test_resume_refuses_other_data(mlrun: Mlrun, spec: Spec) -> None:
    assert mlrun("launch", spec(steps=2)).finish() == 0
    assert mlrun("resume", "last", "--set", "data.source=synthetic").finish() == 2


def test_a_complete_run_goes_on_only_when_asked_for_more(mlrun: Mlrun, spec: Spec) -> None:
    first = mlrun("launch", spec(steps=3))
    assert first.finish() == 0
    again = mlrun("resume", "last")
    assert again.finish() == 2
    assert again.events == []
    assert first.summary["step"] == 3  # which reads summary.json again
    more = mlrun("resume", "last", "--set", "steps=5")
    assert more.finish() == 0
    assert more.summary["step"] == 5


def test_smoke_proves_that_a_checkpoint_goes_on(mlrun: Mlrun, spec: Spec) -> None:
    data = {"source": "imagefolder", "path": "nowhere", "image_size": 8, "classes": 10}
    job = spec(epochs=3, steps=None, smoke={"steps": 3}, data=data, model={"name": "mlp"})
    run = mlrun("launch", job, "--smoke")

    assert run.finish() == 0
    assert run.summary["step"] == 5
    assert "nowhere isn't here: the smoke run takes synthetic data" in [
        e["text"] for e in run.said("LogEvent")
    ]


def test_output_without_end_stays_in_the_log(mlrun: Mlrun, spec: Spec) -> None:
    run = mlrun("launch", spec(trouble={"what": "talk"}))

    assert run.finish() == 0
    log = (run.folder / "rank-0.log").read_text().splitlines()
    assert [line.split()[1] for line in log if line.startswith("line ")] == [str(n) for n in range(200_000)]
    assert len(run.said("LogEvent")) < 2000
