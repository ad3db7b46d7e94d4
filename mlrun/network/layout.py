"""From the edges between hosts to what ranks are told: where to listen, and their paths to the next rank."""

from __future__ import annotations

from collections.abc import Sequence

from mlrun.network.choice import Edge
from mlrun.protocol import LinkEnd, LinkPath

_LOOPBACK = LinkEnd("127.0.0.1")


def host_order(edges: Sequence[Edge]) -> list[str]:
    """The hosts in the order of the ring."""
    return list(dict.fromkeys(host for edge in edges for host in edge.hosts))


def ends_of_host(host: str, workers: int, edges: Sequence[Edge]) -> list[LinkEnd]:
    """Where the ``workers`` of ``host`` listen: on their edges, and for each other on loopback."""
    ends = [
        end
        for edge in edges
        for path in edge.paths
        for name, end in zip(edge.hosts, path.ends, strict=True)
        if name == host
    ]
    return [*dict.fromkeys(ends), *([_LOOPBACK] if workers > 1 or not ends else [])]


def paths_of_ranks(hosts: Sequence[str], edges: Sequence[Edge]) -> list[list[LinkPath]]:
    """``Plan.paths`` for ranks on ``hosts``, those of one host side by side; empty where all are on one."""
    if not edges:
        return []
    between = {edge.hosts: edge.paths for each in edges for edge in (each, each.reversed())}
    nexts = [hosts[(rank + 1) % len(hosts)] for rank in range(len(hosts))]
    return [
        [LinkPath([_LOOPBACK, _LOOPBACK], "loopback")] if here == there else between[here, there]
        for here, there in zip(hosts, nexts, strict=True)
    ]
