"""What the interfaces of real hosts carry while they train, and strangers who knock meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, Network, missing
from tests.cluster.node import CHECKOUT

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SPEC = """\
name: traffic
model: {name: mlp, args: {hidden: [1024, 1024]}}
data: {source: digits, workers: 0}
global_batch_size: 64
steps: 60
optimizer: {lr: 0.01}
device: cpu
threads: 1
"""
NETWORKS = [
    Network("10.71.0.0/24", "en0", mbit=200),
    Network("10.71.0.0/24", "en1", mbit=200),
    Network("10.72.0.0/24", "en5", mbit=2000),
    Network("10.73.0.0/24", {"mac1": "en6", "mac2": "en7"}, mbit=2000),
]


def launch(cluster: Cluster, work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**cluster.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    argv = [
        sys.executable,
        "-m",
        "mlrun.cli",
        "launch",
        "traffic.yaml",
        "-H",
        ",".join(cluster.hosts),
        *options,
    ]
    return cluster.launcher.run([*argv, "--console", "plain"], cwd=work, timeout=240, env=environment)


def events_of(cluster: Cluster, work: Path, *options: str) -> list[dict[str, Any]]:
    """Train; what the run told."""
    done = launch(cluster, work, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    run = max((work / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def train(cluster: Cluster, work: Path, *options: str) -> tuple[dict[str, Any], int, dict[str, float]]:
    """Train; the summary, the bytes that rank 0 sent to its neighbour, and mac1's sent bytes by interface.

    Those are counted in shares of what rank 0 sent.
    """
    mac1 = cluster.hosts["mac1"]
    before = {name: mac1.byte_counts(name)[0] for name in mac1.addresses}
    events = events_of(cluster, work, *options)
    carried = {name: mac1.byte_counts(name)[0] - count for name, count in before.items()}
    sent: int = max(e["bytes_sent"] for e in events if e["type"] == "LinkEvent" and e["rank"] == 0)
    summary: dict[str, Any] = events[-1]["summary"]
    assert cluster.leftovers() == {}
    return summary, sent, {name: count / sent for name, count in carried.items()}


def prepare(cluster: Cluster, spec: str) -> Path:
    for host in cluster.hosts.values():
        host.install()
    work = cluster.launcher.home / "work"
    work.mkdir()
    (work / "traffic.yaml").write_text(spec)
    return work


def test_the_chosen_interfaces_carry_the_data() -> None:
    with Cluster(2, NETWORKS) as cluster:
        work = prepare(cluster, SPEC)
        summary, sent, shares = train(cluster, work)
        assert sent > 100e6
        (link,) = summary["links"]
        assert sorted(link["interfaces"]) == [["en5", "en5"], ["en6", "en7"]]
        assert shares["en5"] > 0.3
        assert shares["en6"] > 0.3
        # Probes before the start, the log and the checkpoint go there too.
        assert shares["en0"] + shares["en1"] < 0.4

        again, sent, shares = train(cluster, work, "--interface", "en1")
        (link,) = again["links"]
        assert link["interfaces"] == [["en1", "en1"]]
        assert shares["en1"] > 0.99
        assert shares["en0"] < 0.4
        assert shares["en5"] + shares["en6"] < 0.01
        assert again["parameter_hash"] == summary["parameter_hash"]

        # A cable between two Macs may have nothing but the link-local addresses that each gives itself.
        for host in cluster.hosts.values():
            host.batch("ip", [f"addr del {host.addresses['en5']}/24 dev en5"])
        bare, sent, shares = train(cluster, work, "--interface", "en5")
        (link,) = bare["links"]
        assert all(address.startswith("fe80::") for address in link["addresses"][0])
        assert shares["en5"] > 0.99
        assert bare["parameter_hash"] == summary["parameter_hash"]


def test_a_slow_edge_is_warned_of_before_the_first_step() -> None:
    cable = Network("10.72.0.0/30", {"mac1": "en5", "mac2": "en5"}, mbit=1000)
    with Cluster(3, [Network("10.71.0.0/24", "en0", mbit=40), cable]) as cluster:
        work = prepare(cluster, SPEC.replace("[1024, 1024]", "[64]"))
        events = events_of(cluster, work, "--set", "steps=3")
        first_step = next(i for i, event in enumerate(events) if event["type"] == "StepEvent")
        told = [e["text"] for e in events[:first_step] if e["type"] == "LogEvent" and e["level"] == "warning"]
        slow = [text for text in told if "per step to average" in text]
        assert [text.split(" over ")[0] for text in slow] == ["mac2 → mac3", "mac3 → mac1"]
        assert all("over the best edge" in text for text in slow)
        kinds = {e["kind"] for e in events if e["type"] == "LinkEvent"}
        assert kinds == {"ethernet"}
