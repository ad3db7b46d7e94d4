"""The ways by which two hosts may reach each other, and what trying one of them told."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mlrun.probe.addresses import Address
from mlrun.protocol import LinkEnd

KINDS = ("thunderbolt", "thunderbolt-bridge", "ethernet", None, "wifi", "vpn", "virtual")
"""Kinds of interfaces, the most promising first; None is one that the system says nothing of."""
_UNASKED = ("vpn", "virtual", "loopback")
"""Kinds that carry a run only where they are named."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of each of two hosts. ``network``: the subnet of both; None: only routers join them."""

    ends: tuple[Address, Address]
    network: str | None

    @property
    def interfaces(self) -> tuple[str, str]:
        return self.ends[0].interface, self.ends[1].interface

    @property
    def kind(self) -> str | None:
        """Of the less promising of both interfaces."""
        return max((end.kind for end in self.ends), key=_promise)

    @property
    def is_scoped(self) -> bool:
        """Whether these are link-local IPv6 addresses."""
        return "%" in self.ends[0].address

    @property
    def order(self) -> tuple[int, int]:
        """Sorts candidates, the most promising first: IPv4, then IPv6, then link-local IPv6."""
        return _promise(self.kind), 2 if self.is_scoped else 1 if ":" in self.ends[0].address else 0


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair of addresses that works. ``dialler``: which end could open it, 0 or 1."""

    candidate: Candidate
    round_trip_s: float
    dialler: int
    bytes_per_s: float | None = None


def usable(facts: Mapping[str, Any], only: Collection[str]) -> list[Address]:
    """The addresses of a host that links may use, from what its agent says of it.

    ``only``: names of interfaces, or addresses; by default every cable and Wi-Fi.
    """
    names = {field.name for field in fields(Address)}
    found = [Address(**{k: v for k, v in each.items() if k in names}) for each in facts.get("addresses", ())]
    if only:
        return [a for a in found if a.up and (a.interface in only or a.address.partition("%")[0] in only)]
    return [a for a in found if a.up and a.kind not in _UNASKED]


def on_one_subnet(mine: Sequence[Address], theirs: Sequence[Address]) -> list[Candidate]:
    """The pairs that need no router, one for each pair of interfaces: the most promising first.

    Every interface has a link-local IPv6 address, so these tell nothing of who shares a cable: they are for
    interfaces that have nothing else in common with the other host.
    """
    found: dict[tuple[str, str], Candidate] = {}
    near = [candidate for candidate in _pairs(mine, theirs) if candidate.network is not None]
    for candidate in sorted((c for c in near if not c.is_scoped), key=lambda c: c.order):
        found.setdefault(candidate.interfaces, candidate)
    joined = [{candidate.interfaces[side] for candidate in found.values()} for side in (0, 1)]
    for candidate in near:
        if candidate.is_scoped and not any(candidate.interfaces[side] in joined[side] for side in (0, 1)):
            found.setdefault(candidate.interfaces, candidate)
    return list(found.values())


def routed(mine: Sequence[Address], theirs: Sequence[Address]) -> list[Candidate]:
    """The pairs that only a router joins, one for each pair of interfaces: the most promising first."""
    found: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(_pairs(mine, theirs), key=lambda c: c.order):
        if candidate.network is None and not any(_ip(end).is_link_local for end in candidate.ends):
            found.setdefault(candidate.interfaces, candidate)
    return list(found.values())


def end_of(address: Address) -> LinkEnd:
    return LinkEnd(address.address, address.interface)


def _pairs(mine: Sequence[Address], theirs: Sequence[Address]) -> Iterator[Candidate]:
    for near in mine:
        for far in theirs:
            if _ip(near).version == _ip(far).version and _ip(near) != _ip(far):
                yield Candidate((near, far), _common_network(near, far))


def _common_network(near: Address, far: Address) -> str | None:
    if near.prefix_length is None or near.prefix_length != far.prefix_length:
        return None
    networks = {ipaddress.ip_network((_bare(end), near.prefix_length), strict=False) for end in (near, far)}
    return str(networks.pop()) if len(networks) == 1 else None


def _bare(address: Address) -> str:
    return address.address.partition("%")[0]


def _ip(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(_bare(address))


def _promise(kind: str | None) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)
