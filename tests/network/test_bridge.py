"""A closed ring of bridged Thunderbolt cables is refused; whatever isn't one may start."""

from __future__ import annotations

from typing import Any

import pytest

from mlrun.errors import RefusedError
from mlrun.network.bridge import refuse_closed_ring
from mlrun.probe.macos import thunderbolt_bridge

IFCONFIG = """\
en1: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\toptions=460<TSO4,TSO6,CHANNEL_IO>
\tstatus: {0}
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tstatus: {1}
en3: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tConfiguration:
\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0
\t\tmaxage 0 holdcnt 0 proto stp maxaddr 100 timeout 1200
\tmember: en1 flags=3<LEARNING,DISCOVER>
\tmember: en2 flags=3<LEARNING,DISCOVER>
\tmember: en3 flags=3<LEARNING,DISCOVER>
\tstatus: active
"""


def bridge(*cabled: str) -> dict[str, Any]:
    text = IFCONFIG.format(*("active" if port in cabled else "inactive" for port in ("en1", "en2")))
    state = thunderbolt_bridge(text)
    assert state is not None
    return {"interface": state.interface, "members": state.members, "cabled": state.cabled, "up": state.up}


@pytest.mark.parametrize("size", [3, 4, 8])
def test_a_closed_ring_is_refused_with_the_way_out(size: int) -> None:
    ring = {f"mac{i}": bridge("en1", "en2") for i in range(1, size + 1)}
    with pytest.raises(RefusedError) as refused:
        refuse_closed_ring(ring | {"linux": None})
    assert f"mac{size}: en1, en2 in bridge0" in refused.value.message
    assert f"on mac{size}, sudo ifconfig bridge0 deletem en2" in str(refused.value)


@pytest.mark.parametrize(
    "bridges",
    [
        {"mac1": bridge("en1", "en2"), "mac2": bridge("en1", "en2")},
        {"mac1": bridge("en1"), "mac2": bridge("en1", "en2"), "mac3": bridge("en2")},
        {"a": bridge("en1"), **{f"b{i}": bridge("en1", "en2") for i in range(4)}, "c": bridge("en1")},
        {f"mac{i}": {**bridge("en1", "en2"), "up": False} for i in range(3)},
        {f"mac{i}": None for i in range(4)},
    ],
    ids=["two cables between two", "chain of three", "chain of six", "bridge switched off", "no Macs"],
)
def test_what_is_no_closed_ring_may_start(bridges: dict[str, dict[str, Any] | None]) -> None:
    refuse_closed_ring(bridges)
