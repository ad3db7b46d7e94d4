"""``--detach`` over ssh: the launcher lives on the first host, and this machine only looks on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import OFFICE, Cluster, missing
from tests.cluster.node import CHECKOUT, Node

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SHORT = ("--set", "epochs=null", "--set", "steps=200", "--set", "checkpoint.every_steps=20")
ENDLESS = ("--set", "epochs=null", "--set", "steps=1000000", "--set", "checkpoint.every_steps=500")
SAME = (
    "--set",
    "checkpoint.every_epochs=null",
    "--set",
    "threads=1",
    "--set",
    "device=cpu",
    "-H",
    "mac1,mac2",
)
END_S = 60.0


@pytest.fixture(scope="module")
def room() -> Iterator[Cluster]:
    """Two hosts; the first one's key is admitted by the second."""
    with Cluster(2, [OFFICE]) as built:
        keys = built.launcher.home / ".ssh"
        for host in built.hosts.values():
            host.install()
            for name in ("id_ed25519", "known_hosts"):
                shutil.copy(keys / name, host.home / ".ssh")
        yield built


@pytest.fixture
def work(room: Cluster) -> Iterator[Path]:
    folder = room.root / "work"
    folder.mkdir()
    shutil.copy(CHECKOUT / "configs" / "digits.yaml", folder)
    yield folder
    shutil.rmtree(folder)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mlrun.cli", *arguments]


def mlrun(node: Node, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**node.environment(), "PYTHONPATH": str(CHECKOUT)}
    return node.run(command(*arguments), cwd=work, timeout=240, env=environment)


def detached(room: Cluster, work: Path, *arguments: str) -> Path:
    """Launch and detach; the run's folder on mac1."""
    done = mlrun(
        room.launcher, work, "launch", "digits.yaml", "--detach", "-H", "mac1,mac2", *SAME, *arguments
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"lives on mac1, in (\S+):", done.stderr)
    assert told is not None, done.stderr
    assert not (work / "runs").exists()
    assert room.launcher.processes() == []
    return Path(told[1])


def test_it_lives_on_without_this_machine_and_is_stopped_from_it(room: Cluster, work: Path) -> None:
    folder = detached(room, work, *ENDLESS)
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    watcher = room.launcher.popen(
        command("attach", "last", "--console", "json"), cwd=work, env=environment, stdout=subprocess.PIPE
    )
    assert watcher.stdout is not None
    kinds = (json.loads(line)["type"] for line in watcher.stdout)
    assert "CheckpointEvent" in kinds
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    for process in room.launcher.processes():
        process.kill()

    assert folder.name in mlrun(room.launcher, work, "ps", "-H", "mac1,mac2").stdout
    assert f"{folder.name}  lives on mac1" in mlrun(room.launcher, work, "runs", "ls").stdout
    assert "running" in mlrun(room.launcher, work, "runs", "show", folder.name).stdout
    assert "global batch 64" in mlrun(room.launcher, work, "logs", "last").stdout
    refused = mlrun(room.launcher, work, "replay", folder.name)
    assert (refused.returncode, "lives on mac1" in refused.stderr) == (2, True)

    cleaned = mlrun(room.launcher, work, "hosts", "clean", "-H", "mac1,mac2")
    assert (cleaned.returncode, cleaned.stdout.count("something of mlrun runs there")) == (1, 2)

    stopped = mlrun(room.launcher, work, "stop", "last")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "has ended" in stopped.stdout
    assert room.leftovers() == {}
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["hashes_agree"]) == ("stopped", True)
    assert mlrun(room.launcher, work, "attach", "last", "--console", "plain").returncode == 143
    assert mlrun(room.launcher, work, "hosts", "clean", "-H", "mac1,mac2").returncode == 0
    assert (folder / "summary.json").is_file()


@pytest.mark.slow
def test_a_worker_killed_at_night_costs_no_bit(room: Cluster, work: Path) -> None:
    whole = mlrun(room.launcher, work, "launch", "digits.yaml", "-np", "2", *SAME, *SHORT)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    unbroken = json.loads(next((work / "runs").glob("*/summary.json")).read_text())
    shutil.rmtree(work / "runs")

    folder = detached(room, work, *SHORT, "--max-restarts", "1")
    workers = [p for p in room.hosts["mac2"].processes() if "mlrun.worker" in p.cmdline()]
    workers[0].kill()
    ended = mlrun(room.launcher, work, "attach", "last", "--console", "plain")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["restarts"], summary["step"]) == (1, 200)
    assert summary["parameter_hash"] == unbroken["parameter_hash"]


def test_a_host_that_the_first_one_can_not_reach_is_named(room: Cluster, work: Path) -> None:
    known = room.hosts["mac1"].home / ".ssh" / "known_hosts"
    before = known.read_text()
    known.write_text("")
    done = mlrun(room.launcher, work, "launch", "digits.yaml", "--detach", "-H", "mac1,mac2", *SAME, *SHORT)
    known.write_text(before)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "mac2" in done.stdout
    assert "never connected" in done.stdout
    deadline = time.monotonic() + END_S
    while room.leftovers():
        assert time.monotonic() < deadline
        time.sleep(0.1)
