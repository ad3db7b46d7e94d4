"""``mlrun replay`` of a recorded run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlrun.wire import encode


@pytest.fixture
def runs_dir(tmp_path: Path, training) -> Path:
    """A folder with one run, whose launcher was of a newer version and killed while it wrote."""
    folder = tmp_path / "runs" / "resnet-1"
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text("name: resnet\n")
    lines = [encode(event) for event in training(2, 10)]
    lines.insert(3, b'{"type":"EventOfTomorrow","time":1.0}\n')
    (folder / "events.jsonl").write_bytes(b"".join(lines) + b'{"type":"LogEv')
    return folder.parent


def replay(runs_dir: Path, run: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlrun.cli", "replay", run, "--runs-dir", str(runs_dir), *options]
    env = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_a_run_is_shown_again(runs_dir, training):
    done = replay(runs_dir, "last", "--speed", "100", "--console", "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode() == b"".join(encode(event) for event in training(2, 10))


def test_a_run_is_found_by_the_start_of_its_name(runs_dir):
    done = replay(runs_dir, "res", "--speed", "100")
    assert done.returncode == 0, done.stderr
    assert "equal on all 2 ranks" in done.stdout


def test_a_run_without_events_is_refused(runs_dir):
    (runs_dir / "resnet-1" / "events.jsonl").unlink()
    done = replay(runs_dir, "last")
    assert done.returncode == 2
    assert "resnet-1 has no events.jsonl" in done.stderr
