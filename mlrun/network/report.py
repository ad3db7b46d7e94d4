"""What was chosen, in lines for people, and a warning where a link will hold up the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlrun.network.choice import Edge, rates_together
from mlrun.protocol import LinkPath

MUCH_SLOWER = 10.0
"""An edge that is so many times slower than the best one is worth a warning."""

_NAMES = {
    "thunderbolt": "Thunderbolt",
    "thunderbolt-bridge": "the Thunderbolt bridge",
    "ethernet": "Ethernet",
    "wifi": "Wi-Fi",
    "vpn": "a VPN",
    "virtual": "a virtual interface",
    "loopback": "loopback",
}


def edge_line(edge: Edge) -> str:
    """``mac1 → mac2 over Thunderbolt (en5 → en6), 1.2 GB/s, round trip 0.08 ms``."""
    ways = " and ".join(f"{_kind(path)} ({_interfaces(path)})" for path in edge.paths)
    together = " together" if len(edge.paths) > 1 else ""
    trips = [path.round_trip_s for path in edge.paths if path.round_trip_s is not None]
    trip = f", round trip {max(trips) * 1e3:.2g} ms" if trips else ""
    return f"{edge.hosts[0]} → {edge.hosts[1]} over {ways}, {_rate(edge.bytes_per_s)}{together}{trip}"


def warnings(edges: Sequence[Edge], ranks: int, gradient_bytes: int | None) -> list[str]:
    """One for each edge that is Wi-Fi, or far slower than the best one.

    ``gradient_bytes``: what all ranks average in one step; None where it isn't known.
    """
    rates = rates_together(edges)
    best = max((rate for rate in rates if rate is not None), default=None)
    found = []
    for edge, rate in zip(edges, rates, strict=True):
        slow = rate is not None and best is not None and rate * MUCH_SLOWER <= best
        if edge.kind == "wifi" or slow:
            found.append(_warning(edge, rate, best if slow else None, ranks, gradient_bytes))
    return found


def edge_details(edges: Sequence[Edge]) -> list[dict[str, Any]]:
    """The ring's edges as the events and summary.json tell them."""
    return [
        {
            "hosts": list(edge.hosts),
            "kind": edge.kind,
            "interfaces": [[end.interface for end in path.ends] for path in edge.paths],
            "addresses": [[end.address for end in path.ends] for path in edge.paths],
            "bytes_per_s": edge.bytes_per_s,
            "bytes_per_s_together": together,
            "round_trip_s": edge.paths[0].round_trip_s,
        }
        for edge, together in zip(edges, rates_together(edges), strict=True)
    ]


def _warning(
    edge: Edge, rate: float | None, best: float | None, ranks: int, gradient_bytes: int | None
) -> str:
    what = f"{edge.hosts[0]} → {edge.hosts[1]} over {_kind(edge.paths[-1])} at {_rate(edge.bytes_per_s)}"
    if rate is not None and edge.bytes_per_s is not None and rate < edge.bytes_per_s:
        what += " shared with the next edge"
    if rate is None:
        cost = "how long a step will take is unknown"
    elif gradient_bytes is None:
        cost = f"every 100 MB of gradients take about {_seconds(_per_step(100_000_000, ranks, rate))}"
    else:
        cost = (
            f"about {_seconds(_per_step(gradient_bytes, ranks, rate))} per step to average "
            f"{gradient_bytes / 1e6:,.0f} MB of gradients"
        )
        if best is not None:
            other = _seconds(_per_step(gradient_bytes, ranks, best))
            cost += f", against {other} over the best edge"
    return (
        f"{what}: {cost}, and all hosts wait for the slowest edge. Where computing a step takes less than "
        f"that, fewer hosts are faster. {_action(edge)}"
    )


def _action(edge: Edge) -> str:
    one, other = edge.hosts
    try_ = f"Try a cable between {one} and {other}"
    if edge.kind == "wifi":
        return f"{try_}, or keep to one that is there: --interface NAME, or network.interfaces in the spec."
    return f"{try_}, look for a bad cable, port or adapter, or leave one of them out of --hosts."


def _per_step(gradient_bytes: int, ranks: int, rate: float) -> float:
    """Seconds of a ring all-reduce: (n - 1) / n of the gradients cross each edge in each direction.

    Two ranks exchange their halves over one edge twice, in both directions at once.
    """
    halves = 2 if ranks == 2 else 1
    return halves * (ranks - 1) / ranks * gradient_bytes / rate


def kind_name(kind: str | None) -> str:
    """What people call a kind of interface (see ``probe.addresses``)."""
    return _NAMES.get(kind or "", "an unknown interface")


def _kind(path: LinkPath) -> str:
    return kind_name(path.kind)


def _interfaces(path: LinkPath) -> str:
    names = [end.interface or end.address for end in path.ends]
    return names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "unknown speed"
    return f"{rate / 1e9:.1f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{max(seconds * 1e3, 1):.0f} ms"
