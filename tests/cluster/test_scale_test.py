"""``mlrun scale-test --hosts``: real sockets over shaped cables, and the slow one is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, Network, missing
from tests.cluster.node import CHECKOUT

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SPEC = """\
name: room
framework: sim
model: {name: resnet18}
sim: {samples_per_second: 32}
batch_size: 32
steps: 6
"""
OFFICE = Network("10.71.0.0/24", "en0", mbit=20)
CABLES = [("mac1", "mac2", 400), ("mac2", "mac3", 100), ("mac3", "mac1", 400)]


def test_a_slow_cable_is_named(tmp_path: Path) -> None:
    networks = [
        Network(f"10.8{i}.0.0/30", {one: f"en{5 + i}", other: f"en{5 + i}"}, mbit=rate)
        for i, (one, other, rate) in enumerate(CABLES)
    ]
    with Cluster(3, [OFFICE, *networks]) as cluster:
        for host in cluster.hosts.values():
            host.install()
        work = cluster.root / "work"
        work.mkdir()
        (work / "room.yaml").write_text(SPEC)
        done = cluster.launcher.run(
            [
                sys.executable,
                "-m",
                "mlrun.cli",
                "scale-test",
                "room.yaml",
                "--hosts",
                "mac1,mac2,mac3",
                "--counts",
                "1,3",
                "--predict",
                "3",
                "--out",
                "out",
            ],
            cwd=work,
            timeout=200,
            env={**cluster.launcher.environment(), "PYTHONPATH": str(CHECKOUT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        points = json.loads((work / "out" / "scale.json").read_text())["points"]
    assert [(each["workers"], each["kind"]) for each in points] == [
        (1, "simulated"),
        (3, "simulated"),
        (3, "predicted"),
    ]
    assert "slowest link is mac2 → mac3" in points[1]["explanation"]
