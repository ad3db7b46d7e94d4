"""One cluster of four for the tests that don't change it; the others build their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import OFFICE, Cluster, Network, missing

THUNDERBOLT = Network("10.72.0.0/24", "en5", mbit=4000)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four hosts with an office Ethernet (en0, with the launcher) and a faster network (en5)."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(4, [OFFICE, THUNDERBOLT]) as built:
        yield built
