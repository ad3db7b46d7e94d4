"""``mlrun launch --hosts``: one command trains on all hosts, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT, Node

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

HOSTS = "mac1,mac2,mac3,mac4"
SHORT = ("--set", "epochs=null", "--set", "steps=12", "--set", "threads=1", "--set", "device=cpu")
OFTEN = ("--set", "checkpoint.every_epochs=null", "--set", "checkpoint.every_steps=5")


def mlrun(node: Node, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**node.environment(), "PYTHONPATH": str(CHECKOUT)}
    argv = [sys.executable, "-m", "mlrun.cli", *arguments, "--console", "plain"]
    return node.run(argv, cwd=work, timeout=240, env=environment)


def last_run(work: Path) -> Path:
    return max((work / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.fixture(scope="module")
def room(cluster: Cluster) -> Cluster:
    for host in cluster.hosts.values():
        host.install()
    return cluster


@pytest.fixture
def work(room: Cluster) -> Iterator[Path]:
    folder = room.root / "my work"
    folder.mkdir()
    shutil.copy(CHECKOUT / "configs" / "digits.yaml", folder)
    yield folder
    shutil.rmtree(folder)


def test_a_script_for_torchrun_trains_one_model_on_two_hosts(room: Cluster, work: Path) -> None:
    shutil.copy(CHECKOUT / "examples" / "ddp_digits.py", work)
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    argv = [
        "-m",
        "mlrun.cli",
        "launch",
        "ddp_digits.py",
        "-H",
        "mac1,mac2",
        "--console",
        "plain",
        "--",
        "--epochs",
        "1",
    ]
    done = room.launcher.run([sys.executable, *argv], cwd=work, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition("weights ")[2] for line in done.stdout.splitlines() if ", weights " in line]
    assert len(said) == 2
    assert len(set(said)) == 1
    assert room.leftovers() == {}


def test_four_hosts_train_what_four_workers_here_train(room: Cluster, work: Path) -> None:
    done = mlrun(room.launcher, work, "launch", "digits.yaml", "-H", HOSTS, *SHORT, *OFTEN)
    assert done.returncode == 0, done.stdout + done.stderr
    there = last_run(work)
    assert room.leftovers() == {}

    done = mlrun(room.launcher, work, "launch", "digits.yaml", "-np", "4", *SHORT, *OFTEN)
    assert done.returncode == 0, done.stdout + done.stderr
    far, near = summary_of(there), summary_of(last_run(work))
    assert far["hashes_agree"] is True
    assert far["parameter_hash"] == near["parameter_hash"]
    assert {rank["host"] for rank in far["ranks"]} == set(room.hosts)

    # Whole logs, the checkpoints that the spec keeps and the timelines have come; nothing stays there.
    assert Path(far["checkpoint"]) == there / "checkpoints" / "step-00000012"
    assert {path.name for path in (there / "checkpoints").glob("step-*")} >= {
        "step-00000010",
        "step-00000012",
    }
    assert len(list(there.glob("rank-*.log"))) == 4
    assert (there / "timeline.json").is_file()
    for host in room.hosts.values():
        assert not list((host.home / ".local/share/mlrun/runs").iterdir())


def test_a_run_goes_on_from_its_checkpoint_on_other_hosts(room: Cluster, work: Path) -> None:
    done = mlrun(room.launcher, work, "launch", "digits.yaml", "-H", "mac1,mac2", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    done = mlrun(room.launcher, work, "resume", "last", "-H", "mac3,mac4", "--set", "steps=16")
    assert done.returncode == 0, done.stdout + done.stderr
    run = last_run(work)
    resumed = summary_of(run)
    assert (resumed["step"], resumed["hashes_agree"]) == (16, True)
    assert {rank["host"] for rank in resumed["ranks"]} == {"mac3", "mac4"}
    assert {path.name for path in (run / "checkpoints").glob("step-*")} == {"step-00000012", "step-00000016"}
    assert room.leftovers() == {}


def test_every_unreachable_host_is_named_at_once(room: Cluster, work: Path) -> None:
    done = mlrun(room.launcher, work, "launch", "digits.yaml", "-H", "mac1,mac8,mac9", *SHORT)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "2 of 3 hosts can't take part" in done.stdout
    assert "mac8" in done.stdout
    assert "mac9" in done.stdout
    assert room.leftovers() == {}


def test_a_host_with_another_torch_is_refused(room: Cluster, work: Path) -> None:
    mac2 = room.hosts["mac2"]
    packages = next((mac2.home / ".local/share/mlrun/venv").glob("lib/python*/site-packages"))
    other = packages / "torch-2.1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    try:
        done = mlrun(room.launcher, work, "launch", "digits.yaml", "-H", "mac1,mac2", *SHORT)
    finally:
        shutil.rmtree(other)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the hosts don't agree on torch" in done.stdout
    assert "2.1.0" in done.stdout
    assert room.leftovers() == {}


def test_a_stale_folder_of_a_hosts_own_is_refused(room: Cluster, work: Path) -> None:
    own = room.hosts["mac2"].home / "mine"
    own.mkdir()
    (own / "digits.yaml").write_text("name: old\n")
    (work / "hosts.yaml").write_text(f"hosts:\n- mac1\n- name: mac2\n  workdir: {own}\n")
    try:
        done = mlrun(room.launcher, work, "launch", "digits.yaml", "--hostfile", "hosts.yaml", *SHORT)
    finally:
        shutil.rmtree(own)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"mac2: the code in {own} isn't the code here: digits.yaml and 1 more differ" in done.stdout
    assert room.leftovers() == {}


def test_a_secret_passes_through_and_is_stored_nowhere(room: Cluster, work: Path) -> None:
    (work / "looking.py").write_text(
        "import os\n\ndef build(**_):\n    raise ValueError(f\"{len(os.environ['TOKEN'])} letters\")\n"
    )
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT), "TOKEN": "hush-hush-42"}
    argv = [sys.executable, "-m", "mlrun.cli", "launch", "digits.yaml", "-H", "mac1", "--console", "plain"]
    options = ["--set", "model.name=looking:build", "--set", "model.args={}", "--set", "env.TOKEN=null"]
    done = room.launcher.run([*argv, *options], cwd=work, timeout=240, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: 12 letters" in done.stdout
    assert "hush-hush-42" not in done.stdout + done.stderr
    stored = [path for path in last_run(work).rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if b"hush-hush-42" in path.read_bytes()]
    assert room.leftovers() == {}


def test_ctrl_c_stops_in_order_and_brings_the_checkpoint(room: Cluster, work: Path) -> None:
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    argv = [
        sys.executable,
        "-m",
        "mlrun.cli",
        "launch",
        "digits.yaml",
        "-H",
        "mac1,mac2",
        "--console",
        "plain",
    ]
    endless = ["--set", "steps=1000000", "--set", "evaluate=null", "--console", "plain"]
    process = room.launcher.popen(
        [*argv, *SHORT, *endless], cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "step 1/" in line:
            process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, "".join(said)
    summary = summary_of(last_run(work))
    assert summary["status"] == "stopped"
    assert (Path(summary["checkpoint"]) / "state.json").is_file()
    assert Path(summary["checkpoint"]).is_relative_to(last_run(work))
    assert room.leftovers() == {}
