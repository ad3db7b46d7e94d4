"""Between the agents' first words and the workers' start: which links the run uses, and in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlrun.hosts import Host
from mlrun.network.bridge import refuse_closed_ring
from mlrun.network.candidates import usable
from mlrun.network.choice import Edge, choose
from mlrun.network.layout import ends_of_host, host_order, paths_of_ranks
from mlrun.network.memory import Memory, default_path
from mlrun.network.report import edge_details, edge_line, warnings
from mlrun.network.survey import Outbox, Survey
from mlrun.protocol import (
    Assignment,
    Event,
    LinkEnd,
    LinkListening,
    LinkMeasured,
    LinkPath,
    LogEvent,
    StateEvent,
)
from mlrun.spec import JobSpec

_GRADIENT_BYTES = {"fp16": 2, "bf16": 2, None: 4}
"""Bytes on the wire for each parameter, by ``allreduce.wire_dtype``."""


class Linking:
    """The links of one generation. One host needs none: everything is done at once and on loopback.

    Raises:
        RefusedError: the cables form a loop that would flood the network.
    """

    def __init__(
        self, hosts: Sequence[Host], facts: Mapping[str, Mapping[str, Any]], spec: JobSpec, secret: str
    ) -> None:
        self._spec = spec
        self._names = [host.name for host in hosts]
        self._edges: list[Edge] = []
        if len(hosts) > 1:
            refuse_closed_ring({name: facts[name].get("thunderbolt_bridge") for name in self._names})
        allowed = {h.name: usable(facts[h.name], h.interfaces or spec.network.interfaces) for h in hosts}
        self.ports = spec.network.port_range
        self._survey = Survey(allowed, secret, self.ports, Memory(default_path()))

    @property
    def done(self) -> bool:
        return self._survey.done

    def begin(self) -> Outbox:
        """The first messages to agents."""
        return self._survey.begin()

    def heard(self, host: str, message: LinkListening | LinkMeasured) -> Outbox:
        """Take in what an agent says; the next messages to agents."""
        return self._survey.heard(host, message)

    def choose(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Decide; ``assignments`` in the order of the ring, those of one host side by side.

        Raises:
            RefusedError: some hosts can't reach each other.
        """
        self._edges = choose(self._names, self._survey)
        place = {host: i for i, host in enumerate(host_order(self._edges))}
        in_order = sorted(assignments, key=lambda a: (place.get(a.host, 0), a.local_rank))
        return [replace(assignment, rank=rank) for rank, assignment in enumerate(in_order)]

    def listen(self, host: str, workers: int) -> list[LinkEnd]:
        """Where the workers of ``host`` accept their neighbours."""
        return ends_of_host(host, workers, self._edges)

    def paths(self, hosts: Sequence[str]) -> list[list[LinkPath]]:
        """``Plan.paths``, for ranks on ``hosts``."""
        return paths_of_ranks(hosts, self._edges)

    def between(self, host: str, other: str | None) -> list[LinkPath]:
        """The paths chosen for the link of two neighbours, seen from ``host``; none where they aren't."""
        seen = (edge for each in self._edges for edge in (each, each.reversed()))
        return next((edge.paths for edge in seen if edge.hosts == (host, other)), [])

    def announcement(self) -> list[Event]:
        """The choice, for people and for the run's record."""
        if not self._edges:
            return []
        detail = {"edges": edge_details(self._edges)}
        return [*(LogEvent(edge_line(edge)) for edge in self._edges), StateEvent("connecting", detail)]

    def warnings(self, ranks: int, parameters: int | None) -> list[Event]:
        """What will hold up every step, now that the model's size is known or known to be unknown."""
        each = _GRADIENT_BYTES[self._spec.allreduce.wire_dtype]
        gradient_bytes = None if parameters is None else parameters * each
        return [LogEvent(text, "warning") for text in warnings(self._edges, ranks, gradient_bytes)]
