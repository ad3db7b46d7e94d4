"""One host of a generation: its agent, and what goes there and comes back beside the agent's pipe."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlrun.agent.code import Manifest
from mlrun.hosts import Host
from mlrun.launch.clock import HostClock
from mlrun.launch.lasting import LastingTransport
from mlrun.launch.remote import Remote
from mlrun.launch.transport import LocalTransport, Transport
from mlrun.protocol import (
    Assignment,
    CheckpointEvent,
    Event,
    HelloReply,
    StateEvent,
)

CLOSE_S = 12.0
"""How long an agent may take to end its workers and itself."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A host has what its workers need. ``workdir`` and ``resume_from`` are folders there."""

    workdir: str
    resume_from: str | None


@dataclass(slots=True)
class Station:
    """A host with workers. ``remote`` is None for this machine."""

    host: Host
    assignments: list[Assignment]
    transport: Transport
    remote: Remote | None
    run_dir: str
    """The run's folder on that host."""
    heard: float = field(default_factory=time.monotonic)
    clock: HostClock = field(default_factory=HostClock)
    started: bool = False
    reply: HelloReply | None = None
    ready: Ready | None = None
    at_work: bool = False
    lost: bool = False

    @property
    def name(self) -> str:
        return self.host.name

    async def start(self) -> None:
        """Start the agent.

        Raises:
            RefusedError, RunFailedError: why that isn't possible.
        """
        await self.transport.start()
        self.started = True
        self.heard = time.monotonic()

    async def prepare(self, workdir: str, code: Manifest | None, resume_from: Path | None) -> Ready:
        """Bring code and checkpoint there.

        Raises:
            RefusedError: they didn't arrive.
        """
        if self.remote is None or code is None:
            return Ready(self.host.workdir or workdir, str(resume_from) if resume_from else None)
        there = await self.remote.send_code(code)
        return Ready(there, await self.remote.send_checkpoint(resume_from) if resume_from else None)

    def here(self, event: Event) -> Event:
        """``event`` with a checkpoint's path as it is, or will be, on this machine."""
        if self.remote is None:
            return event
        if isinstance(event, CheckpointEvent):
            return replace(event, path=self.remote.here(event.path))
        if isinstance(event, StateEvent):
            there = {key: event.detail.get(key) for key in ("checkpoint", "resumed_from")}
            here = {key: self.remote.here(path) for key, path in there.items() if path is not None}
            return replace(event, detail={**event.detail, **here})
        return event

    def environment(self, env: dict[str, str | None]) -> dict[str, str]:
        """The run's ``env`` with the host's on top; None passes this process's own value on."""
        merged = {**env, **self.host.env}
        return {
            name: os.environ[name] if value is None else value
            for name, value in merged.items()
            if value is not None or name in os.environ
        }

    async def close(self, run_id: str) -> None:
        """Return once the agent is gone, and all that it left."""
        in_order = await self.transport.close(0 if self.lost else CLOSE_S)
        if self.started and not in_order:
            await self.transport.reap(run_id)


def station(
    host: Host,
    assignments: list[Assignment],
    workdir: str,
    run_dir: Path,
    *,
    run_id: str,
    lease_s: float,
    is_here: bool,
) -> Station:
    """The station of ``host``, with an agent on this machine or over ssh."""
    if is_here:
        return Station(host, assignments, LocalTransport(host.name), None, str(run_dir))
    remote = Remote(host, workdir, run_dir, run_id)
    transport = LastingTransport(host, workdir, run_id, lease_s)
    return Station(host, assignments, transport, remote, remote.run_dir)
