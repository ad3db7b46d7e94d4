"""``mlrun doctor --hosts``: the first rung that doesn't hold, its evidence and one fix."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import OFFICE, Cluster, missing
from tests.cluster.node import CHECKOUT, INSTALLED

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def doctor(room: Cluster, hosts: str) -> subprocess.CompletedProcess[str]:
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    argv = [sys.executable, "-m", "mlrun.cli", "doctor", "--hosts", hosts]
    return room.launcher.run(argv, timeout=120, env=environment)


def packages_of(room: Cluster, host: str) -> Path:
    return next((room.hosts[host].home / INSTALLED).glob("lib/python*/site-packages"))


@pytest.fixture
def room() -> Iterator[Cluster]:
    with Cluster(2, [OFFICE]) as built:
        for host in built.hosts.values():
            host.install()
        yield built


def test_it_climbs_until_the_first_rung_that_does_not_hold(room: Cluster) -> None:
    done = doctor(room, "mac1,mac2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  ssh: mac1, mac2" in done.stdout
    assert "ok  links: mac1 → mac2 over Ethernet (en0)" in done.stdout

    other = packages_of(room, "mac2") / "torch-2.1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    done = doctor(room, "mac1,mac2")
    assert done.returncode == 4
    assert "NO  same versions: the hosts don't agree on torch" in done.stdout
    assert "Fix: install the same on every host" in done.stdout
    assert "links" not in done.stdout

    shutil.rmtree(room.hosts["mac2"].home / INSTALLED)
    done = doctor(room, "mac1,mac2")
    assert done.returncode == 4
    assert "NO  Python with mlrun: mac2: no Python with mlrun" in done.stdout
    assert "same versions" not in done.stdout

    done = doctor(room, "mac1,mac9")
    assert done.returncode == 4
    assert "NO  ssh: mac9: " in done.stdout
    assert "Python with mlrun" not in done.stdout
    assert room.leftovers() == {}
