"""``mlrun hosts check``: every host in a row of one table, whatever is wrong with the others."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlrun.doctor.asking import LEASE_S, measure_links, reach, reply_of
from mlrun.doctor.command import any_spec
from mlrun.errors import ExitCode, MlrunError
from mlrun.hosts import Host
from mlrun.launch.agreement import agree
from mlrun.launch.here import on_this_machine
from mlrun.launch.station import Station, station
from mlrun.protocol import Bye
from mlrun.spec import JobSpec

_UNKNOWN = "?"
_HEAD = ("host", "mlrun", "framework", "Python", "system", "chip", "free disk")


def check(hosts: Sequence[Host], framework: str, say: Callable[[str], None]) -> ExitCode:
    """Show the table, then the links; THRESHOLD_MISSED where a run of ``framework`` couldn't start.

    Raises:
        RequestError: there is no such framework.
    """
    return asyncio.run(_check(hosts, any_spec(framework), say))


async def _check(hosts: Sequence[Host], spec: JobSpec, say: Callable[[str], None]) -> ExitCode:
    here = await asyncio.to_thread(on_this_machine, hosts)
    run_id = f"check-{secrets.token_hex(4)}"
    folder = Path.cwd()
    stations = [
        station(host, [], str(folder), folder, run_id=run_id, lease_s=LEASE_S, is_here=host.name in here)
        for host in hosts
    ]
    facts: dict[str, dict[str, Any]] = {}
    troubles: list[str] = []

    async def ask(at: Station) -> None:
        try:
            await reach(at, run_id)
            facts[at.name] = (await reply_of(at)).facts
        except MlrunError as error:
            troubles.append(str(error))

    try:
        await asyncio.gather(*(ask(at) for at in stations))
        for line in _table([(at.name, facts.get(at.name)) for at in stations], spec.framework):
            say(line)
        reached = [at for at in stations if at.name in facts]
        try:
            if len(reached) > 1:
                links, warnings = await measure_links(reached, facts, spec)
                for line in (*links, *(f"warning: {warning}" for warning in warnings)):
                    say(line)
            if reached:
                for warning in agree({at.name: facts[at.name] for at in reached}, spec.framework):
                    say(f"warning: {warning}")
        except MlrunError as error:
            troubles.append(str(error))
    finally:
        for at in stations:
            at.transport.send(Bye())
        await asyncio.gather(*(at.close(run_id) for at in stations))
    for trouble in troubles:
        say(f"NO  {trouble}")
    return ExitCode.THRESHOLD_MISSED if troubles else ExitCode.DONE


def _table(hosts: Sequence[tuple[str, Mapping[str, Any] | None]], framework: str) -> list[str]:
    rows = [_HEAD, *((name, *_cells(facts, framework)) for name, facts in hosts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cells(facts: Mapping[str, Any] | None, framework: str) -> tuple[str, ...]:
    if facts is None:
        return ("not reached", *("" for _ in _HEAD[2:]))
    version, free = facts["versions"].get(framework), facts["disk_free_bytes"]
    return (
        facts["versions"]["mlrun"],
        "simulated" if framework == "sim" else f"{framework} {version}" if version else f"no {framework}",
        facts["python"],
        f"{facts['system']} {facts['release']}",
        facts["chip"] or _UNKNOWN,
        _UNKNOWN if free is None else f"{free / 1e9:.0f} GB",
    )
