"""Measure the links between hosts: which agent tries which address of which other, and when.

Nothing here waits or sends: ``begin`` and ``heard`` return what is to be sent next.

First the round trip of every plausible pair of addresses, all at once and from both sides, since a firewall
or macOS's Local Network privacy may forbid one of them. Then bandwidth, in rounds in which no host is in two
pairs, so that measurements don't disturb each other.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mlrun.network.candidates import Candidate, Measured, end_of, on_one_subnet, routed
from mlrun.network.memory import Memory
from mlrun.probe.addresses import Address
from mlrun.protocol import (
    LinkListen,
    LinkListening,
    LinkMeasured,
    LinkTry,
)
from mlrun.wire import Message

BANDWIDTH_S = 1.2
"""For the bandwidth of all pairs of hosts together."""
_TRY_S = (0.03, 0.2)
"""The shortest and the longest measurement of one pair of addresses."""

Pair = tuple[str, str]
"""Two hosts, in the order in which they were given."""
Outbox = list[tuple[str, Message]]
"""Who is to be sent what."""


class Survey:
    """One survey of the links between ``hosts``, each with the addresses that links may use."""

    def __init__(
        self,
        hosts: Mapping[str, Sequence[Address]],
        secret: str,
        ports: list[int] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._hosts = {host: list(addresses) for host, addresses in hosts.items()}
        self._listen = {
            host: LinkListen(secret, [end_of(a) for a in addresses], ports)
            for host, addresses in self._hosts.items()
        }
        self._memory = memory or Memory()
        self._endpoints: dict[str, dict[str, str]] = {}
        self._found: dict[Pair, dict[Candidate, Measured]] = {p: {} for p in itertools.combinations(hosts, 2)}
        self._problems: dict[Pair, str] = {}
        self._asked: dict[int, tuple[Pair, Candidate, int, float]] = {}
        self._numbers = itertools.count(1)
        self._stages: Iterator[Outbox] = self._plan()
        self.done = len(self._hosts) < 2

    def begin(self) -> Outbox:
        """The first messages."""
        return [] if self.done else list(self._listen.items())

    def heard(self, host: str, message: LinkListening | LinkMeasured) -> Outbox:
        """Take in what an agent says; what is to be sent next. ``done`` once nothing is left to ask."""
        if isinstance(message, LinkListening):
            ends = self._listen[host].ends
            answers = zip(ends, message.endpoints, strict=False)
            self._endpoints[host] = {end.address: where for end, where in answers if where is not None}
            return self._next() if len(self._endpoints) == len(self._hosts) else []
        asked = self._asked.pop(message.number, None)
        if asked is None:
            return []
        self._note(*asked, message)
        return [] if self._asked else self._next()

    def links(self) -> dict[Pair, list[Measured]]:
        """What works between each two hosts, as far as is known by now."""
        return {pair: list(found.values()) for pair, found in self._found.items()}

    def why_not(self, pair: Pair) -> str:
        """Why nothing works between two hosts."""
        if pair in self._problems:
            return self._problems[pair]
        silent = [host for host in pair if not self._endpoints.get(host)]
        return f"{silent[0]} can't listen on any address" if silent else "they have no network in common"

    # Stages -------------------------------------------------------------------------------------

    def _next(self) -> Outbox:
        for outbox in self._stages:
            if outbox:
                return outbox
        self.done = True
        self._memory.keep()
        return []

    def _plan(self) -> Iterator[Outbox]:
        near = {pair: on_one_subnet(*self._addresses(pair)) for pair in self._found}
        yield self._reach(near)
        yield self._reach({p: routed(*self._addresses(p)) for p, found in self._found.items() if not found})
        self._recall()
        rounds = [deque(r) for r in _rounds(list(self._hosts))]
        longest = sum(max((self._unmeasured(p) for p in each), default=0) for each in rounds)
        seconds = min(max(BANDWIDTH_S / max(longest, 1), _TRY_S[0]), _TRY_S[1])
        for each in rounds:
            while any(self._unmeasured(pair) for pair in each):
                yield [self._weigh(pair, seconds) for pair in each if self._unmeasured(pair)]

    def _reach(self, wanted: Mapping[Pair, Iterable[Candidate]]) -> Outbox:
        """Try each candidate from both sides."""
        return [
            self._ask(pair, candidate, dialler, 0.0)
            for pair, candidates in wanted.items()
            for candidate in candidates
            for dialler in (0, 1)
            if candidate.ends[1 - dialler].address in self._endpoints[pair[1 - dialler]]
        ]

    def _weigh(self, pair: Pair, seconds: float) -> tuple[str, Message]:
        """Measure the bandwidth of the first candidate of ``pair`` that has none."""
        measured = next(m for m in self._found[pair].values() if m.bytes_per_s is None)
        return self._ask(pair, measured.candidate, measured.dialler, seconds)

    def _ask(self, pair: Pair, candidate: Candidate, dialler: int, seconds: float) -> tuple[str, Message]:
        number = next(self._numbers)
        self._asked[number] = (pair, candidate, dialler, seconds)
        near, far = candidate.ends[dialler], candidate.ends[1 - dialler]
        endpoint = self._endpoints[pair[1 - dialler]][far.address]
        return pair[dialler], LinkTry(number, end_of(near), endpoint, seconds)

    def _note(
        self, pair: Pair, candidate: Candidate, dialler: int, seconds: float, message: LinkMeasured
    ) -> None:
        found = self._found[pair]
        before = found.get(candidate)
        if message.round_trip_s is None:
            self._problems.setdefault(pair, f"{candidate.ends[1 - dialler].address}: {message.problem}")
            if before is not None and seconds:
                del found[candidate]  # it worked a moment ago, and broke under load
        elif before is None:
            found[candidate] = Measured(candidate, message.round_trip_s, dialler)
        elif seconds:
            self._memory.note(pair, replace(before, bytes_per_s=message.bytes_per_s))
            rate = message.bytes_per_s or 0.0
            found[candidate] = replace(
                before, bytes_per_s=rate, round_trip_s=min(before.round_trip_s, message.round_trip_s)
            )
        else:
            found[candidate] = replace(before, round_trip_s=min(before.round_trip_s, message.round_trip_s))

    def _recall(self) -> None:
        for pair, found in self._found.items():
            for candidate, measured in found.items():
                found[candidate] = replace(measured, bytes_per_s=self._memory.recall(pair, measured))

    def _unmeasured(self, pair: Pair) -> int:
        found = self._found[pair].values()
        return sum(m.bytes_per_s is None for m in found)

    def _addresses(self, pair: Pair) -> tuple[list[Address], list[Address]]:
        return self._hosts[pair[0]], self._hosts[pair[1]]


def _rounds(hosts: list[str]) -> Iterator[list[Pair]]:
    """Every pair of hosts once, in as few rounds as possible with each host in one pair of a round."""
    place = {host: i for i, host in enumerate(hosts)}
    seats: list[str | None] = [*hosts] if len(hosts) % 2 == 0 else [*hosts, None]
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: math.ceil(len(seats) / 2)], reversed(seats), strict=False)
        yield [(a, b) if place[a] < place[b] else (b, a) for a, b in pairs if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]
