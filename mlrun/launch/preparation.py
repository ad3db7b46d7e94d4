"""What lies between the agents' first words and the workers' start: agreement, code, links."""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mlrun.agent.code import Manifest
from mlrun.errors import MlrunError, RefusedError
from mlrun.launch.agreement import agree
from mlrun.launch.data import StoreProcess, agree_on_data, not_shipped
from mlrun.launch.linking import Linking
from mlrun.launch.readiness import host_warnings, room_warnings
from mlrun.launch.resolve import Resolved, for_host, with_own_data
from mlrun.launch.ship import manifest
from mlrun.launch.station import Ready, Station
from mlrun.network.survey import Outbox
from mlrun.protocol import (
    PROTOCOL_VERSION,
    DataSeen,
    Event,
    HelloReply,
    LinkListening,
    LinkMeasured,
    LinkPath,
    LogEvent,
    LookAtData,
    Ping,
    StartWorkers,
    StoreWay,
)
from mlrun.spec.training import FILES_OF

Heard: TypeAlias = HelloReply | Ready | DataSeen | LinkListening | LinkMeasured
"""What brings the preparation forward."""
Put: TypeAlias = Callable[[Station, Ready | MlrunError], Awaitable[None]]
"""Hands something that happened on a host to whoever handles it in order."""


class Stage(enum.Enum):
    """What every host is at."""

    GREETING = "answer"
    SENDING = "get the code"
    LOOKING = "look at its data"
    LINKING = "measure its links"
    COMPLETE = "start"


class Preparation:
    """Takes in what agents say, in order. ``show`` is told what people should know.

    Whatever it raises (RefusedError) is a reason not to start.
    """

    def __init__(
        self,
        resolved: Resolved,
        stations: Sequence[Station],
        resume_from: Path | None,
        show: Callable[[Event], None],
        *,
        smoke: bool,
    ) -> None:
        assert resolved.spec.workdir is not None
        self._spec = resolved.spec
        self._workdir = resolved.spec.workdir
        self._stations = {at.name: at for at in stations}
        self._resume_from = resume_from
        self._show = show
        self._smoke = smoke
        self._secret = secrets.token_hex(32)
        self._store = StoreProcess()
        self._seen: dict[str, DataSeen] = {}
        self._linking: Linking | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self.assignments = resolved.assignments
        """In the order of the ring, once the stage is COMPLETE."""
        self.stage = Stage.GREETING

    def awaited(self) -> str:
        """The hosts that a stage which takes too long waits for."""
        stations = self._stations.values()
        if self.stage is Stage.GREETING:
            return ", ".join(at.name for at in stations if at.reply is None)
        if self.stage is Stage.SENDING:
            return ", ".join(at.name for at in stations if at.ready is None)
        if self.stage is Stage.LOOKING:
            return ", ".join(at.name for at in stations if at.name not in self._seen)
        return ", ".join(self._stations)

    def heard(self, at: Station, item: Heard) -> None:
        """One answer of a host; ``stage`` changes with the last one that was due."""
        if isinstance(item, HelloReply):
            self._greeted(at, item)
        elif isinstance(item, Ready):
            at.ready = item
            if all(other.ready is not None for other in self._stations.values()):
                self._look()
        elif isinstance(item, DataSeen):
            self._seen[at.name] = item
            if len(self._seen) == len(self._stations):
                agree_on_data({name: self._seen[name] for name in self._stations})
                self._link()
        elif self._linking is not None and self.stage is Stage.LINKING:
            self._send(self._linking.heard(at.name, item))

    async def send_all(self, put: Put) -> None:
        """Bring every host what its workers need, and ``put`` that it is ready, or why it can't be."""

        async def send(at: Station, code: Manifest | None) -> None:
            await put(at, await at.prepare(self._workdir, code, self._resume_from))

        stations = list(self._stations.values())
        try:
            code = None
            if any(at.remote is not None for at in stations):
                code = await asyncio.to_thread(manifest, Path(self._workdir), not_shipped(self._spec))
                await self._store.start(self._spec, self._secret)
            await asyncio.gather(*(send(at, code) for at in stations))
        except MlrunError as error:
            await put(stations[0], error)

    def start_workers(self) -> None:
        """The last word: every agent starts its workers."""
        assert self._linking is not None
        for at in self._stations.values():
            assert at.reply is not None
            assert at.ready is not None
            at.assignments = [a for a in self.assignments if a.host == at.name]
            spec, notes = for_host(
                self._spec if at.remote is not None else with_own_data(self._spec),
                at.host,
                len(at.assignments),
                at.reply.facts,
                smoke=self._smoke,
            )
            for note in notes:
                self._show(LogEvent(note, host=at.name))
            request = StartWorkers(
                at.assignments,
                spec.model_copy(update={"workdir": at.ready.workdir}).model_dump(mode="json"),
                at.run_dir,
                self._secret,
                at.environment(self._spec.env),
                at.ready.resume_from,
                self._linking.listen(at.name, len(at.assignments)),
                self._linking.ports,
                self._ways_to_store(at),
            )
            at.transport.send(request)
            at.at_work = True

    def _ways_to_store(self, at: Station) -> list[StoreWay]:
        if at.remote is None:
            return []
        assert self._linking is not None
        here = next((other.name for other in self._stations.values() if other.remote is None), None)
        return self._store.ways(self._facts[at.name], self._linking.between(at.name, here))

    async def close(self) -> None:
        """Serve no data any more. Idempotent."""
        await self._store.close()

    def paths(self) -> list[list[LinkPath]]:
        """``Plan.paths``."""
        assert self._linking is not None
        return self._linking.paths([assignment.host for assignment in self.assignments])

    def warnings(self, parameters: int | None) -> list[Event]:
        """Links that will hold up every step of a model of this many parameters, and disks it may fill."""
        assert self._linking is not None
        full = [LogEvent(text, "warning") for text in room_warnings(self._facts, parameters)]
        return [*self._linking.warnings(len(self.assignments), parameters), *full]

    def _greeted(self, at: Station, reply: HelloReply) -> None:
        if reply.protocol_version != PROTOCOL_VERSION:
            raise RefusedError(
                f"{at.name} speaks version {reply.protocol_version} of mlrun's protocol, "
                f"this machine {PROTOCOL_VERSION}",
                fix="install the same mlrun on both",
            )
        at.reply = reply
        at.transport.send(Ping(time.time()))  # The clocks are compared while the host is still idle.
        facts = {name: each.reply.facts for name, each in self._stations.items() if each.reply is not None}
        if len(facts) == len(self._stations):
            self._facts = facts
            for warning in (*agree(facts, self._spec.framework), *host_warnings(facts)):
                self._show(LogEvent(warning, "warning"))
            hosts = [each.host for each in self._stations.values()]
            self._linking = Linking(hosts, facts, self._spec, self._secret)
            self.stage = Stage.SENDING

    def _look(self) -> None:
        """Where each host has the data itself, do all have the same?"""
        data = self._spec.data
        if len(self._stations) == 1 or data.location != "each-host" or data.source not in FILES_OF:
            self._link()
            return
        self.stage = Stage.LOOKING
        for at in self._stations.values():
            assert at.ready is not None
            path = at.host.data or data.path
            assert path is not None
            at.transport.send(LookAtData(data.source, path, at.ready.workdir))

    def _link(self) -> None:
        assert self._linking is not None
        self.stage = Stage.LINKING
        self._send(self._linking.begin())

    def _send(self, outbox: Outbox) -> None:
        assert self._linking is not None
        for name, message in outbox:
            self._stations[name].transport.send(message)
        if self._linking.done:
            self.settle_links()

    def settle_links(self) -> None:
        """Choose from what was measured, which may be less than was asked for."""
        assert self._linking is not None
        self.assignments = self._linking.choose(self.assignments)
        for event in self._linking.announcement():
            self._show(event)
        self.stage = Stage.COMPLETE
