"""Choose from what was measured: the order of the ring, and the interfaces of each of its edges."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mlrun.allreduce.ways import total_rate
from mlrun.errors import RefusedError
from mlrun.network.candidates import Measured, end_of
from mlrun.network.survey import Pair, Survey
from mlrun.protocol import LinkPath

ALL_ORDERS_UP_TO = 8
"""Hosts for which every order of the ring is tried."""
GOOD_ENOUGH = 0.6
"""Orders of the ring are alike when one is that fast compared with the other."""
COMPARABLE = 0.7
"""A second cable helps when it is that fast compared with the first: bytes are shared out evenly."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Two neighbours in the ring, and the paths that carry their link, the fastest first."""

    hosts: Pair
    paths: list[LinkPath]

    @property
    def bytes_per_s(self) -> float | None:
        return total_rate(self.paths)

    @property
    def kind(self) -> str | None:
        """Of the slowest path."""
        return self.paths[-1].kind

    def reversed(self) -> Edge:
        paths = [LinkPath(p.ends[::-1], p.kind, p.bytes_per_s, p.round_trip_s) for p in self.paths]
        return Edge((self.hosts[1], self.hosts[0]), paths)


def rates_together(edges: Sequence[Edge]) -> list[float | None]:
    """Bytes per second of each edge while all of the ring's carry data, in each direction.

    Alone an edge has its interfaces for itself. In the ring both edges of a host may go through the same one,
    as they do where everything hangs on one switch.
    """
    users = Counter(
        place for edge in edges for place in {p for path in edge.paths for p in _places(edge, path)}
    )
    return [
        total_rate(
            [
                replace(path, bytes_per_s=path.bytes_per_s and path.bytes_per_s / shared)
                for path in edge.paths
                for shared in [max(users[place] for place in _places(edge, path))]
            ]
        )
        for edge in edges
    ]


def _places(edge: Edge, path: LinkPath) -> list[tuple[str, str]]:
    """Host and interface at both ends."""
    return [(host, end.interface or end.address) for host, end in zip(edge.hosts, path.ends, strict=True)]


def choose(hosts: Sequence[str], survey: Survey) -> list[Edge]:
    """The ring: edge i joins host i of the new order and the next one. Two hosts have one edge.

    Raises:
        RefusedError: no order joins all hosts.
    """
    if len(hosts) < 2:
        return []
    edges: dict[Pair, Edge] = {}
    for (a, b), measured in survey.links().items():
        if measured:
            edges[a, b] = Edge((a, b), fastest(measured))
            edges[b, a] = edges[a, b].reversed()
    order = ring_order(hosts, {pair: edge.bytes_per_s or 1.0 for pair, edge in edges.items()})
    missing = [pair for pair in _around(order) if pair not in edges]
    if missing:
        lines = [
            f"  {a} and {b}: {survey.why_not((a, b) if (a, b) in survey.links() else (b, a))}"
            for a, b in missing
        ]
        raise RefusedError(
            "\n".join(["these hosts can't reach each other, and no order of the ring does without:", *lines]),
            fix="join them by a cable or one network, open the firewall (network.ports gives it a range), "
            "or name their interfaces (network.interfaces)",
        )
    return [edges[pair] for pair in _around(order)]


def fastest(measured: Sequence[Measured]) -> list[LinkPath]:
    """The fastest way between two hosts, and those nearly as fast over other cables."""
    ranked = sorted(measured, key=lambda m: (-(m.bytes_per_s or 0.0), m.candidate.order, m.round_trip_s))
    chosen: list[Measured] = []
    for each in ranked:
        enough = (each.bytes_per_s or 0.0) >= COMPARABLE * (ranked[0].bytes_per_s or 0.0) > 0
        if not chosen or (enough and not any(_share_a_cable(each, other) for other in chosen)):
            chosen.append(each)
    return [
        LinkPath(
            [end_of(end) for end in m.candidate.ends], m.candidate.kind, m.bytes_per_s or None, m.round_trip_s
        )
        for m in chosen
    ]


def ring_order(hosts: Sequence[str], rates: Mapping[Pair, float]) -> list[str]:
    """The order in which the slowest edge is fastest, and the others as fast as may be with that.

    Measurements are never quite the same twice, so the given order stays where it hardly matters.

    ``rates``: bytes per second of each two hosts that can reach each other, under both orders of the two.
    The first host stays the first.
    """

    def edges(order: Sequence[str]) -> list[float]:
        return [rates.get(pair, 0.0) for pair in _around(order)]

    given = list(hosts)
    if len(given) < 4:
        return given  # the same edges in every order
    orders: list[list[str]] = [
        given,
        *(_orders(given) if len(given) <= ALL_ORDERS_UP_TO else [_greedy(given, rates)]),
    ]
    slowest = max(min(edges(order)) for order in orders)
    good = [order for order in orders if min(edges(order)) >= GOOD_ENOUGH * slowest]
    best = max(good, key=lambda order: sum(edges(order)))
    if given in good and sum(edges(given)) >= GOOD_ENOUGH * sum(edges(best)):
        return given
    return best


def _orders(hosts: list[str]) -> Iterator[list[str]]:
    """Every ring of ``hosts`` once: the first one stays, and a ring read backwards is the same ring."""
    place = {host: i for i, host in enumerate(hosts)}
    for rest in itertools.permutations(hosts[1:]):
        if place[rest[0]] < place[rest[-1]]:
            yield [hosts[0], *rest]


def _greedy(hosts: list[str], rates: Mapping[Pair, float]) -> list[str]:
    order, left = hosts[:1], hosts[1:]
    while left:
        order.append(max(left, key=lambda host: rates.get((order[-1], host), 0.0)))
        left.remove(order[-1])
    return order


def _around(order: Sequence[str]) -> list[Pair]:
    if len(order) == 2:
        return [(order[0], order[1])]
    return [(a, order[(i + 1) % len(order)]) for i, a in enumerate(order)]


def _share_a_cable(one: Measured, other: Measured) -> bool:
    """Whether two pairs of interfaces have an interface or a subnet in common.

    Link-local subnets have one name everywhere, so they tell nothing.
    """
    a, b = one.candidate, other.candidate
    if a.interfaces[0] == b.interfaces[0] or a.interfaces[1] == b.interfaces[1]:
        return True
    return a.network == b.network and not (a.network or "").startswith(("169.254.", "fe80:"))
