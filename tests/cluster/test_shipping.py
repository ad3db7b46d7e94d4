"""The work folder comes to a host over ssh, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture
def room() -> Iterator[Cluster]:
    with Cluster(1) as built:
        built.hosts["mac1"].install()
        yield built


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('one')\n")
    (folder / "pkg" / "big.bin").write_bytes(bytes(range(256)) * 20000)
    return folder


def send(cluster: Cluster, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.cluster.send_code", str(folder), "mac1"]
    return cluster.launcher.run(argv, cwd=CHECKOUT)


def test_code_arrives_and_only_changes_travel_after(room: Cluster, work: Path) -> None:
    mac1 = room.hosts["mac1"]
    first = send(room, work)
    assert first.returncode == 0, first.stdout + first.stderr
    there = Path(first.stdout.strip())
    assert there.is_relative_to(mac1.home / ".local" / "share" / "mlrun" / "code")
    assert (there / "train.py").read_text() == "print('one')\n"
    assert (there / "pkg" / "big.bin").read_bytes() == (work / "pkg" / "big.bin").read_bytes()
    (work / "train.py").write_text("print('two')\n")
    before = mac1.byte_counts("en0")[1]
    assert send(room, work).stdout == first.stdout
    assert (there / "train.py").read_text() == "print('two')\n"
    assert mac1.byte_counts("en0")[1] - before < 1_000_000
    assert room.leftovers() == {}


def test_a_full_disk_is_said_in_one_sentence(room: Cluster, work: Path) -> None:
    mac1 = room.hosts["mac1"]
    cache = mac1.home / ".local" / "share" / "mlrun" / "code"
    cache.mkdir(exist_ok=True)
    mounted = mac1.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(cache)])
    assert mounted.returncode == 0, mounted.stderr
    done = send(room, work)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "mac1: the code didn't arrive:" in done.stdout
    assert "No space left on device" in done.stdout
    assert done.stderr == ""
    assert room.leftovers() == {}
