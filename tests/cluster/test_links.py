"""Which links are chosen between real hosts with several interfaces of different speed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.cluster import OFFICE, Cluster, Network, missing
from tests.cluster.node import CHECKOUT, Node

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SLOW = Network("10.71.0.0/24", "en0", mbit=100)


def survey(cluster: Cluster, hosts: Sequence[Any], **network: Any) -> subprocess.CompletedProcess[str]:
    spec = json.dumps({"hosts": list(hosts), "network": network})
    return cluster.launcher.run([sys.executable, "-m", "tests.cluster.choose_links", spec], cwd=CHECKOUT)


def chosen(cluster: Cluster, hosts: Sequence[Any], **network: Any) -> dict[str, Any]:
    done = survey(cluster, hosts, **network)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def install(cluster: Cluster) -> None:
    for host in cluster.hosts.values():
        host.install()


def test_the_fast_interface_is_chosen(cluster: Cluster) -> None:
    install(cluster)
    answer = chosen(cluster, list(cluster.hosts))
    assert [edge["interfaces"] for edge in answer["edges"]] == [[["en5", "en5"]]] * 4
    for edge in answer["edges"]:
        assert edge["kind"] == "ethernet"
        assert edge["bytes_per_s"] is not None
    assert cluster.leftovers() == {}


def test_interfaces_are_restricted_by_the_spec_and_by_each_host(cluster: Cluster) -> None:
    install(cluster)
    names = list(cluster.hosts)[:2]
    assert chosen(cluster, names, interfaces=["en0"])["edges"][0]["interfaces"] == [["en0", "en0"]]
    own = [{"name": name, "interfaces": [cluster.hosts[name].addresses["en0"]]} for name in names]
    assert chosen(cluster, own, interfaces=["en5"])["edges"][0]["interfaces"] == [["en0", "en0"]]
    done = survey(cluster, names, interfaces=["en9"])
    assert done.returncode == 3
    assert "mac1 and mac2: mac1 can't listen on any address" in done.stdout
    assert "network.interfaces" in done.stdout


def test_two_fast_cables_are_used_at_once_and_a_slow_one_is_not() -> None:
    networks = [
        SLOW,
        Network("10.72.0.0/30", {"mac1": "en5", "mac2": "en6"}, mbit=400),
        Network("10.73.0.0/30", {"mac1": "en7", "mac2": "en8"}, mbit=400),
    ]
    with Cluster(2, networks) as cluster:
        install(cluster)
        (edge,) = chosen(cluster, ["mac1", "mac2"])["edges"]
        assert sorted(edge["interfaces"]) == [["en5", "en6"], ["en7", "en8"]]
        assert edge["bytes_per_s"] is not None


def test_the_ring_follows_the_cables_and_a_slow_edge_is_warned_of() -> None:
    cables = [("mac1", "mac3"), ("mac3", "mac2"), ("mac2", "mac4")]
    networks = [
        Network("10.71.0.0/24", "en0", mbit=20),
        *(
            Network(f"10.8{i}.0.0/30", {a: f"en{5 + i}", b: f"en{5 + i}"}, mbit=800)
            for i, (a, b) in enumerate(cables)
        ),
    ]
    with Cluster(4, networks) as cluster:
        install(cluster)
        answer = chosen(cluster, ["mac1", "mac2", "mac3", "mac4"])
        assert [edge["hosts"] for edge in answer["edges"]][:3] == [
            ["mac1", "mac3"],
            ["mac3", "mac2"],
            ["mac2", "mac4"],
        ]
        assert answer["edges"][3]["interfaces"] == [["en0", "en0"]]
        (warning,) = answer["warnings"]
        assert re.match(
            r"mac4 → mac1 over Ethernet at [\d.]+ MB/s: about [\d.]+ s per step to average 100 MB", warning
        )
        assert "Try a cable between mac4 and mac1" in warning


def close_ports(host: Node, ports: str) -> None:
    """A firewall that lets nobody in on these ports; what the host opens itself goes out and comes back."""
    rules = [
        "add pref 100 lookup local",
        "del pref 0",
        f"add pref 10 iif en0 ipproto tcp dport {ports} blackhole",
    ]
    host.batch("ip", [f"rule {rule}" for rule in rules])


def test_where_one_side_cannot_be_dialled_the_other_is() -> None:
    ports = "47500-47600"
    with Cluster(2, [OFFICE]) as cluster:
        install(cluster)
        close_ports(cluster.hosts["mac2"], ports)
        (edge,) = chosen(cluster, ["mac1", "mac2"], ports=ports)["edges"]
        assert edge["bytes_per_s"] is not None
        close_ports(cluster.hosts["mac1"], ports)
        done = survey(cluster, ["mac1", "mac2"], ports=ports)
        assert done.returncode == 3, done.stdout
        assert "mac1 and mac2: " in done.stdout
        assert "a firewall drops the packets" in done.stdout


def test_a_cable_pulled_since_the_last_run_is_not_chosen_again(cluster: Cluster) -> None:
    install(cluster)
    names = list(cluster.hosts)[:2]
    chosen(cluster, names)
    mac1 = cluster.hosts["mac1"]
    mac1.set_interface("en5", up=False)
    try:
        assert chosen(cluster, names)["edges"][0]["interfaces"] == [["en0", "en0"]]
    finally:
        mac1.set_interface("en5", up=True)
