"""``mlrun top --hosts``: every host tells over ssh, and nothing is left behind."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def test_all_hosts_tell_until_the_interrupt(cluster: Cluster) -> None:
    for host in cluster.hosts.values():
        host.install()
    node = cluster.launcher
    watch = [sys.executable, "-m", "mlrun.cli", "top", "--hosts", "mac1,mac2,mac3,mac4", "--console", "json"]
    done = node.run(
        ["timeout", "--preserve-status", "-s", "INT", "40", *watch],
        cwd=cluster.root,
        timeout=120,
        env={**node.environment(), "PYTHONPATH": str(CHECKOUT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    known = {event["host"] for event in told if event["type"] == "TelemetryEvent" and event["memory_bytes"]}
    assert known == {"mac1", "mac2", "mac3", "mac4"}
    assert cluster.leftovers() == {}
