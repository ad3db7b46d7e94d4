"""A ring of Thunderbolt cables that macOS still has in one bridge: packets circle until the network dies.

macOS joins all Thunderbolt ports in ``bridge0``, and no loop protection works there. Hosts don't say which
port leads to which neighbour, so loops are found by counting: as many cables as hosts can't be without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlrun.errors import RefusedError

_LOOP = 3
"""Hosts of the smallest loop; two cables between two Macs are known to do no harm."""


def refuse_closed_ring(bridges: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Check the Thunderbolt bridges of all hosts, as their agents tell them; None where there is none.

    Raises:
        RefusedError: the cables close a loop in ``bridge0``.
    """
    cabled = {
        host: list(bridge["cabled"])
        for host, bridge in bridges.items()
        if bridge is not None and bridge.get("up") and bridge.get("cabled")
    }
    between = [host for host, ports in cabled.items() if len(ports) > 1]
    cables = sum(map(len, cabled.values())) // 2
    if len(between) < _LOOP or cables < len(cabled):
        return
    ports = "\n".join(f"  {host}: {', '.join(cabled[host])} in bridge0" for host in cabled)
    host, port = between[-1], cabled[between[-1]][-1]
    raise RefusedError(
        "the Thunderbolt cables form a closed ring, and macOS still joins their ports in one bridge. Such a "
        f"loop floods the whole network, so nothing was started:\n{ports}",
        fix=f"pull one cable of the ring, or take one port out of its bridge until the next restart: "
        f"on {host}, sudo ifconfig bridge0 deletem {port}",
    )
