"""The short form of ``tests.cluster.faults``: one fault of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import OFFICE, Cluster, missing
from tests.cluster.faults import HOSTS, Fault, suffer

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

FAULTS = [
    Fault("KILL", "worker", "mac1"),
    Fault("STOP", "worker", "mac2"),
    Fault("KILL", "agent", "mac2"),
    Fault("STOP", "agent", "mac1"),
    Fault("KILL", "ssh", "mac1"),
    Fault("STOP", "ssh", "mac2"),
    Fault("KILL", "launcher", None),
    Fault("DOWN", "interface", "mac2"),
]


@pytest.fixture(scope="module")
def room() -> Iterator[Cluster]:
    with Cluster(HOSTS, [OFFICE]) as built:
        for host in built.hosts.values():
            host.install()
        yield built


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_nothing_survives_and_the_cause_is_named(room: Cluster, fault: Fault) -> None:
    assert suffer(room, fault).problems == []
