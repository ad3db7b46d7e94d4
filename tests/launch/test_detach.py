"""A launcher of its own on this machine: what started it may go, and others look on and end it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from mlrun import index
from tests.launch.conftest import TIMEOUT_S, Mlrun


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mlrun.cli", *arguments]
    return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_it_goes_on_by_itself(mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path) -> None:
    job = spec(steps=100_000, checkpoint={"every_steps": 50})
    launched = mlrun("launch", job, "--detach")
    assert launched.finish() == 0
    (entry,) = index.entries()
    assert entry.launcher is not None
    assert os.getsid(entry.pid) == entry.pid

    watcher = mlrun("attach", "last")
    watcher.until("CheckpointEvent")
    processes = [entry.launcher, *entry.launcher.children(recursive=True)]
    stopped = command(tmp_path, "stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    assert watcher.finish() == 143
    assert watcher.summary["status"] == "stopped"
    assert not psutil.wait_procs(processes, timeout=TIMEOUT_S)[1]
    assert (entry.folder / "launcher.log").read_text() == ""


def test_what_is_wrong_is_said_here(mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path) -> None:
    wrong = command(tmp_path, "launch", spec(workdir="nowhere"), "--detach")
    assert (wrong.returncode, "there is no folder" in wrong.stderr) == (2, True)
    failed = mlrun("launch", spec(model={"name": "resnet99"}), "--detach")
    assert failed.finish() == 2
    assert failed.summary["status"] == "failed"


def test_a_run_whose_launcher_was_killed_is_told_of(
    mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path
) -> None:
    run = mlrun("launch", spec(steps=100_000, checkpoint={"every_steps": 50}))
    run.until("CheckpointEvent")
    processes = run.children()
    run.process.kill()
    assert not psutil.wait_procs(processes, timeout=TIMEOUT_S)[1]
    run.process.wait()
    attached = command(tmp_path, "attach", "last", "--console", "plain")
    assert attached.returncode == 1
    assert f"the launcher of {run.folder.name} was killed" in attached.stderr
