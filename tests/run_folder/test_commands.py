"""The commands on runs: found from any folder, listed, compared, followed, ended and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlrun import index, runs
from mlrun.protocol import LogEvent, StateEvent
from mlrun.spec import JobSpec

Mlrun = Callable[..., subprocess.CompletedProcess[str]]
SPEC = {
    "name": "job",
    "model": {"name": "mlp"},
    "batch_size": 8,
    "steps": 100_000,
    "data": {"source": "digits"},
}


@pytest.fixture
def mlrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mlrun:
    """``mlrun`` in ``tmp_path``, with an index of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlrun.cli", *arguments]
        environment = {**os.environ, "COLUMNS": "160"}
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def record(runs_dir: Path, name: str, smoke: bool = False, **keys: object) -> Path:
    """A run as one leaves it that is done."""
    folder = runs.create(runs_dir, name)
    runs.write_spec(folder, JobSpec.model_validate({**SPEC, "name": name, **keys}))
    index.note(folder, smoke=smoke)
    _launcher_is_gone(folder)
    log = runs.EventLog(folder)
    log.write(StateEvent("starting", {"name": name, "run_dir": str(folder)}))
    for rank in (0, 1):
        log.write(LogEvent(f"hello from {rank}", source="stdout", rank=rank, host="mac1"))
        (folder / f"rank-{rank}.log").write_text(f"first line of {rank}\nlast line of {rank}")
    log.close()
    summary = {
        "status": "done",
        "world_size": 2,
        "step": 12,
        "samples_per_second": 345.6,
        "unit": "images",
        "metrics": {"accuracy": 0.987},
        "started": "2026-11-30T22:15:00",
        "parameter_hash": f"{name}-hash",
    }
    runs.write_summary(folder, summary)
    return folder


def _launcher_is_gone(folder: Path) -> None:
    """These runs were noted by this process, which goes on."""
    (entry,) = Path(os.environ["XDG_STATE_HOME"]).glob(f"mlrun/runs/{index.short_id(folder)}")
    known = json.loads(entry.read_text())
    entry.write_text(
        json.dumps({**known, "started": known["started"] - 1e6 + folder.stat().st_mtime_ns / 1e9})
    )


def test_two_hundred_runs_are_listed_and_found_by_their_ids(tmp_path: Path, mlrun: Mlrun) -> None:
    folders = [record(tmp_path / "runs", f"job{number}") for number in range(200)]
    listed = mlrun("runs", "ls").stdout
    assert all(folder.name in listed and index.short_id(folder) in listed for folder in folders)
    assert all(
        figure in listed for figure in ("done", "345.6 images/s", "accuracy 0.9870", "2026-11-30 22:15")
    )
    shown = mlrun("runs", "show", index.short_id(folders[7])).stdout
    assert str(folders[7]) in shown
    assert "done" in shown


def test_a_run_is_found_from_any_folder(tmp_path: Path, mlrun: Mlrun) -> None:
    folder = record(tmp_path / "runs", "far")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for which in ("last", "far-", folder.name, index.short_id(folder)[:4]):
        assert str(folder) in mlrun("runs", "show", which, cwd=elsewhere).stdout
    assert folder.name in mlrun("runs", "ls", cwd=elsewhere).stdout


def test_last_leaves_smoke_runs_out(tmp_path: Path, mlrun: Mlrun) -> None:
    real = record(tmp_path / "runs", "real")
    record(tmp_path / "runs", "trial", smoke=True)
    assert str(real) in mlrun("runs", "show", "last").stdout


def test_damaged_folders_are_listed_as_such(tmp_path: Path, mlrun: Mlrun) -> None:
    whole = record(tmp_path / "runs", "whole")
    for name, spoil in {
        "no-spec": lambda folder: (folder / runs.SPEC_FILE).unlink(),
        "torn-summary": lambda folder: (folder / runs.SUMMARY_FILE).write_text('{"status": "do'),
        "odd-summary": lambda folder: (folder / runs.SUMMARY_FILE).write_text("[1, 2]"),
        "odd-figures": lambda folder: (folder / runs.SUMMARY_FILE).write_text('{"status": 5, "metrics": 3}'),
    }.items():
        spoil(record(tmp_path / "runs", name))
    cut_off = record(tmp_path / "runs", "cut-off")
    (cut_off / runs.SUMMARY_FILE).unlink()
    done = mlrun("runs", "ls")
    assert done.returncode == 0
    assert done.stderr == ""
    rows = {line.split()[1].rpartition("-2")[0]: line for line in done.stdout.splitlines() if "-2" in line}
    assert {name for name, row in rows.items() if "damaged" in row} == {
        "no-spec",
        "torn-summary",
        "odd-summary",
    }
    assert "cut off" in rows["cut-off"]
    assert whole.name in done.stdout


def test_comparing_shows_figures_and_what_differs_in_the_specs(tmp_path: Path, mlrun: Mlrun) -> None:
    record(tmp_path / "runs", "one")
    record(tmp_path / "runs", "two", optimizer={"lr": 0.4})
    told = mlrun("runs", "compare", "one", "two").stdout
    rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line.split()}
    assert rows["optimizer.lr"] == ["0.1", "0.4"]
    assert rows["accuracy"] == ["0.9870", "0.9870"]
    assert "optimizer.momentum" not in rows


def test_logs_of_one_rank_and_of_all(tmp_path: Path, mlrun: Mlrun) -> None:
    record(tmp_path / "runs", "job")
    assert mlrun("logs", "last", "--rank", "1").stdout == "first line of 1\nlast line of 1\n"
    assert mlrun("logs", "last").stdout == "rank 0 | hello from 0\nrank 1 | hello from 1\n"


def test_removing_asks_first(tmp_path: Path, mlrun: Mlrun) -> None:
    folder = record(tmp_path / "runs", "job")
    assert mlrun("runs", "rm", "last").returncode == 1
    assert folder.is_dir()
    assert mlrun("runs", "rm", "last", "--yes").returncode == 0
    assert not folder.exists()
    assert mlrun("runs", "ls").stdout.startswith("no runs yet")


def test_removing_needs_one_run_to_be_meant(tmp_path: Path, mlrun: Mlrun) -> None:
    first, second = record(tmp_path / "runs", "job-a"), record(tmp_path / "runs", "job-b")
    done = mlrun("runs", "rm", "job-", "--yes")
    assert done.returncode == 2
    assert f"{second.name}, {first.name}" in done.stderr
    assert mlrun("runs", "rm", index.short_id(first), "--yes").returncode == 0
    assert not first.exists()
    assert second.exists()


def test_a_run_alive_is_listed_followed_and_stopped(tmp_path: Path, mlrun: Mlrun) -> None:
    (tmp_path / "job.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "mlrun.cli"]
    plain = {"cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "launch", "job.json", "--console", "plain"], **plain) as launch:
        assert any("step " in line for line in launch.stdout)
        assert "running" in mlrun("ps").stdout
        assert mlrun("runs", "rm", "last", "-y").returncode == 3
        with subprocess.Popen([*command, "logs", "last", "-f"], **plain) as following:
            stopped = mlrun("stop", "last")
            assert stopped.returncode == 0, stopped.stderr
            assert "has ended" in stopped.stdout
            launch.stdout.read()
            assert launch.wait(30) == 143
            assert "SIGTERM: finishing the step and saving" in following.stdout.read()
    assert mlrun("ps").stdout == "no run is alive on this machine\n"
    assert mlrun("stop", "last").returncode == 2
