"""``data.location: launcher``: hosts train from the launcher's folder, and each keeps what it got."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT, Node
from tests.data.photographs import write_photographs

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SPEC = {
    "name": "photographs",
    "task": "image-classification",
    "model": {"name": "resnet18"},
    "data": {
        "source": "imagefolder",
        "path": "photographs",
        "location": "launcher",
        "image_size": 32,
        "workers": 1,
    },
    "batch_size": 10,
    "epochs": 2,
    "optimizer": {"lr": 0.01},
    "device": "cpu",
    "threads": 1,
}
FILES = 100


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mlrun.cli", *arguments, "--console", "plain"]


def environment(node: Node) -> dict[str, str]:
    return {**node.environment(), "PYTHONPATH": str(CHECKOUT)}


def launch(room: Cluster, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = command("launch", "spec.yaml", *arguments)
    return room.launcher.run(argv, cwd=work, timeout=240, env=environment(room.launcher))


def summary_of(work: Path) -> dict[str, Any]:
    run = max((work / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def fetched(work: Path) -> tuple[int, int]:
    ranks = summary_of(work)["ranks"]
    return sum(rank["files_fetched"] for rank in ranks), sum(rank["bytes_fetched"] for rank in ranks)


@pytest.fixture(scope="module")
def room(cluster: Cluster) -> Cluster:
    for host in cluster.hosts.values():
        host.install()
    return cluster


@pytest.fixture
def work(room: Cluster) -> Iterator[Path]:
    folder = room.root / "my pictures"
    folder.mkdir()
    write_photographs(folder / "photographs", FILES)
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    yield folder
    shutil.rmtree(folder)
    for host in room.hosts.values():
        shutil.rmtree(host.home / ".cache", ignore_errors=True)


def test_hosts_train_from_the_launchers_folder_and_then_from_their_caches(room: Cluster, work: Path) -> None:
    size = sum(path.stat().st_size for path in (work / "photographs").rglob("*.jpg"))
    before = room.launcher.byte_counts("en0")[0]
    done = launch(room, work, "-H", "mac1,mac2:2")
    assert done.returncode == 0, done.stdout + done.stderr
    on_the_wire = room.launcher.byte_counts("en0")[0] - before
    # Each of the two hosts got each file once, whatever the number of its workers.
    assert fetched(work) == (2 * FILES, 2 * size)
    assert on_the_wire > 2 * size
    far = summary_of(work)
    assert far["hashes_agree"] is True
    # Nothing of the data went with the code.
    assert not list(room.hosts["mac1"].home.rglob("*.jpg"))
    assert room.leftovers() == {}

    before = room.launcher.byte_counts("en0")[0]
    done = launch(room, work, "-H", "mac1,mac2:2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert fetched(work) == (0, 0)
    assert sum(rank["files_cached"] for rank in summary_of(work)["ranks"]) >= 2 * FILES
    assert room.launcher.byte_counts("en0")[0] - before < on_the_wire - 1.5 * size

    done = launch(room, work, "-np", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(work)["parameter_hash"] == far["parameter_hash"]


def uncached(room: Cluster, work: Path, epochs: int) -> subprocess.Popen[str]:
    """A run in progress on two hosts that keep next to nothing, so that each epoch needs the store."""
    little = ("--set", "data.cache_gb=1e-6", "--set", f"epochs={epochs}")
    return room.launcher.popen(
        [*command("launch", "spec.yaml", "-H", "mac1,mac2"), *little],
        cwd=work,
        env=environment(room.launcher),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def said(process: subprocess.Popen[str], at_first_step: Callable[[], None]) -> str:
    """All that the run prints; ``at_first_step`` is called once."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if "step 1/" in line:
            at_first_step()
    return "".join(lines)


def test_a_store_that_dies_ends_the_run_with_one_sentence(room: Cluster, work: Path) -> None:
    def kill() -> None:
        for each in room.launcher.processes():
            if "mlrun.data.serve" in " ".join(each.cmdline()):
                each.send_signal(signal.SIGKILL)

    process = uncached(room, work, epochs=1000)
    told = said(process, kill)
    assert process.wait(120) == 1, told
    assert "Traceback" not in told
    message = summary_of(work)["failure"]["message"]
    assert "doesn't come from the launching machine: 10.71.0.1:" in message
    assert "refused: nothing serves there any more" in message
    assert room.leftovers() == {}


@pytest.mark.slow
def test_a_launcher_without_network_for_a_while_holds_training_up_and_no_more(
    room: Cluster, work: Path
) -> None:
    """Longer than a store may be silent, shorter than the lease."""

    def cut() -> None:
        room.launcher.set_interface("en0", up=False)
        threading.Timer(24, room.launcher.set_interface, ("en0",), {"up": True}).start()

    process = uncached(room, work, epochs=10)
    told = said(process, cut)
    assert process.wait(120) == 0, told
    assert "the connection had broken and is back" in told
    files, _ = fetched(work)
    assert files > 9 * FILES


def test_hosts_that_differ_are_refused_with_a_sentence(room: Cluster, work: Path) -> None:
    for name in ("mac1", "mac2"):
        write_photographs(room.hosts[name].home / "pictures", 12)
    own = room.hosts["mac2"].home / "mine"
    (room.hosts["mac2"].home / "pictures").rename(own)
    (work / "hosts.yaml").write_text(f"hosts:\n- mac1\n- name: mac2\n  data: {own}\n- mac3\n")
    each = ("--set", "data.location=each-host", "--set", "data.path=~/pictures", "--set", "epochs=1")
    done = launch(room, work, "--hostfile", "hosts.yaml", *each)
    assert done.returncode == 3, done.stdout + done.stderr
    place = room.hosts["mac3"].home / "pictures"
    assert f"mac3: 0 files in {place}, mac1 has 12: is the share mounted for this user?" in done.stdout

    (work / "hosts.yaml").write_text(f"hosts:\n- mac1\n- name: mac2\n  data: {own}\n")
    done = launch(room, work, "--hostfile", "hosts.yaml", *each)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("pictures", "mine"):
        for host in room.hosts.values():
            shutil.rmtree(host.home / name, ignore_errors=True)
