"""Checks in the order in which a run would need them; the first that fails ends the climb."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlrun.doctor.asking import LEASE_S, measure_links, reach, reply_of
from mlrun.errors import MlrunError, RefusedError
from mlrun.hosts import Host
from mlrun.launch.agreement import agree
from mlrun.launch.here import on_this_machine
from mlrun.launch.ssh import NoInterpreterError
from mlrun.launch.station import Station, station
from mlrun.protocol import Bye
from mlrun.spec import JobSpec

FREE_BYTES = 2 * 10**9
"""What a host should have free for code, logs and a checkpoint or two."""


@dataclass(frozen=True, slots=True)
class Rung:
    """What one check found, in lines for people; ``fix`` where it didn't hold."""

    name: str
    held: bool
    evidence: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fix: str | None = None


class Ladder:
    """Whether ``hosts`` could run jobs like ``spec``."""

    def __init__(self, hosts: Sequence[Host], spec: JobSpec) -> None:
        self._hosts = hosts
        self._spec = spec
        self._run_id = f"doctor-{secrets.token_hex(4)}"
        self._stations: list[Station] = []
        self._errors: list[MlrunError] = []
        self._facts: dict[str, dict[str, Any]] = {}
        self._warnings: list[str] = []

    async def climb(self) -> AsyncIterator[Rung]:
        """Each rung as it is reached; the last one is the first that didn't hold."""
        here = await asyncio.to_thread(on_this_machine, self._hosts)
        folder = Path.cwd()
        self._stations = [
            station(
                host, [], str(folder), folder, run_id=self._run_id, lease_s=LEASE_S, is_here=host.name in here
            )
            for host in self._hosts
        ]
        checks: list[tuple[str, Callable[[], Awaitable[list[str]]]]] = [
            ("ssh", self._reach),
            ("Python with mlrun", self._find),
            ("agents answer", self._greet),
            ("same versions", self._compare),
            ("free disk", self._measure_disks),
            ("links", self._link),
        ]
        try:
            for name, check in checks:
                rung = await self._try(name, check)
                yield rung
                if not rung.held:
                    return
        finally:
            for at in self._stations:
                at.transport.send(Bye())
            await asyncio.gather(*(at.close(self._run_id) for at in self._stations))

    async def _try(self, name: str, check: Callable[[], Awaitable[list[str]]]) -> Rung:
        self._warnings = []
        try:
            evidence = await check()
        except MlrunError as error:
            return Rung(name, False, error.message.splitlines(), fix=error.fix)
        return Rung(name, True, evidence, self._warnings)

    async def _reach(self) -> list[str]:
        async def start(at: Station) -> None:
            try:
                await reach(at, self._run_id)
            except MlrunError as error:
                self._errors.append(error)

        await asyncio.gather(*(start(at) for at in self._stations))
        _raise_all([error for error in self._errors if not isinstance(error, NoInterpreterError)])
        return [", ".join(at.name if at.remote else f"{at.name} is this machine" for at in self._stations)]

    async def _find(self) -> list[str]:
        _raise_all(self._errors)
        return []

    async def _greet(self) -> list[str]:
        for at in self._stations:
            self._facts[at.name] = (await reply_of(at)).facts
        return []

    async def _compare(self) -> list[str]:
        self._warnings = agree(self._facts, self._spec.framework)
        versions = next(iter(self._facts.values()))["versions"]
        return [f"{name} {versions[name]}" for name in ("mlrun", self._spec.framework) if versions.get(name)]

    async def _measure_disks(self) -> list[str]:
        free = {name: facts["disk_free_bytes"] for name, facts in self._facts.items()}
        for name, found in free.items():
            if found is not None and found < FREE_BYTES:
                raise RefusedError(
                    f"{name} has {found / 1e9:.1f} GB of free disk",
                    fix=f"make {FREE_BYTES / 1e9:.0f} GB free",
                )
        return [
            ", ".join(f"{name} {found / 1e9:.0f} GB" for name, found in free.items() if found is not None)
        ]

    async def _link(self) -> list[str]:
        evidence, self._warnings = await measure_links(self._stations, self._facts, self._spec)
        return evidence


def _raise_all(errors: Sequence[MlrunError]) -> None:
    """One error as it is; several with their fixes below each."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RefusedError("\n".join(str(error) for error in errors), fix="as said below each host")
