"""The data of a run before its start: do all hosts have the same, and who serves them where they don't."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mlrun.allreduce.tcp import format_endpoint, parse_endpoint, seen_through
from mlrun.backends.data import data_folder
from mlrun.data.serve import Request
from mlrun.errors import RefusedError
from mlrun.network.candidates import end_of, on_one_subnet, routed, usable
from mlrun.probe.addresses import Address, addresses
from mlrun.protocol import DataSeen, LinkEnd, LinkPath, StoreWay
from mlrun.spec import JobSpec

LISTING_S = 600.0
"""How long the launching machine may take to list what it serves: a network drive is slow."""
_CLOSE_S = 5.0


def agree_on_data(seen: Mapping[str, DataSeen]) -> None:
    """Compare what hosts have of data that each of them has.

    Raises:
        RefusedError: a host can't look, has none, or other files or classes than most; in a sentence.
    """
    for host, each in seen.items():
        if each.problem is not None:
            raise RefusedError(
                f"{host}: {each.place} can't be read: {each.problem}",
                fix="let the user that mlrun logs in as there read it",
            )
    usual = Counter(_content(each) for each in seen.values() if each.files).most_common(1)
    model = next((host for host, each in seen.items() if usual and _content(each) == usual[0][0]), None)
    if model is None:
        places = ", ".join(f"{host} in {each.place}" for host, each in seen.items())
        raise RefusedError(
            f"no host has any files of the data: {places}",
            fix="correct data.path, or hosts[].data for hosts where it differs",
        )
    odd = [host for host, each in seen.items() if _content(each) != _content(seen[model])]
    if odd:
        sentences = [_difference(host, seen[host], model, seen[model]) for host in odd]
        raise RefusedError(
            "\n".join(sentences),
            fix="bring the same files to every host, or set data.location: launcher",
        )


def _content(seen: DataSeen) -> tuple[int, str]:
    return seen.files, seen.names_hash


def _difference(host: str, its: DataSeen, model: str, usual: DataSeen) -> str:
    if not its.files:
        why = "is the share mounted for this user?"
        return f"{host}: 0 files in {its.place}, {model} has {usual.files:,}: {why}"
    lacking = sorted(set(usual.classes) - set(its.classes))
    more = sorted(set(its.classes) - set(usual.classes))
    if lacking or more:
        what = f"no class {lacking[0]}" if lacking else f"a class {more[0]} more"
        return f"{host}: {what} in {its.place}, {model} has {len(usual.classes)} classes"
    for name, count in usual.classes.items():
        if its.classes[name] != count:
            return (
                f"{host}: {its.classes[name]:,} files of class {name} in {its.place}, {model} has {count:,}"
            )
    if its.files != usual.files:
        return f"{host}: {its.files:,} files in {its.place}, {model} has {usual.files:,}"
    return f"{host}: the files in {its.place} have other names than those of {model}, as many as they are"


def not_shipped(spec: JobSpec) -> list[str]:
    """``ship`` of the spec, and with it the data that the store brings and the code needn't."""
    path = data_folder(spec)
    if spec.data.location != "launcher" or path is None or spec.workdir is None:
        return spec.ship
    with suppress(ValueError):
        inside = path.resolve().relative_to(spec.workdir).as_posix()
        return [*spec.ship, f"/{inside}"]
    return spec.ship


class StoreProcess:
    """``mlrun.data.serve`` as a child of the launcher: it ends with its stdin, so with the launcher too.

    It listens on every address of this machine, and lets in only who knows the run's secret.
    """

    _child: asyncio.subprocess.Process | None = None

    def __init__(self) -> None:
        self._mine: list[Address] = []
        self._endpoints: dict[str, str] = {}

    async def start(self, spec: JobSpec, secret: str) -> None:
        """List and serve the spec's data, where it says that this machine has them.

        Raises:
            RefusedError: there is nothing to serve, nowhere to listen, or the listing takes too long.
        """
        path = data_folder(spec)
        if spec.data.location != "launcher" or path is None:
            return
        self._mine = _reachable([dataclasses.asdict(address) for address in addresses()])
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mlrun.data.serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        request = Request(
            str(path.resolve()),
            spec.data.source,
            secret,
            [address.address for address in self._mine],
            spec.network.port_range,
        )
        self._endpoints = await self._ask(self._child, request)

    async def _ask(self, child: asyncio.subprocess.Process, request: Request) -> dict[str, str]:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
        try:
            line = await asyncio.wait_for(child.stdout.readline(), LISTING_S)
        except asyncio.TimeoutError:
            raise RefusedError(
                f"data.location: the files of {request.path} weren't listed within {LISTING_S:g} s",
                fix="copy them to a disk of this machine",
            ) from None
        told: dict[str, Any] = json.loads(line) if line else {"problem": "what should serve it ended"}
        if "problem" in told or not told["files"]:
            why = told.get("problem", f"it has no files of source {request.source}")
            raise RefusedError(
                f"data.location: this machine can't serve {request.path}: {why}", fix="correct data.path"
            )
        endpoints: dict[str, str] = told["endpoints"]
        return endpoints

    def ways(self, facts: Mapping[str, Any], chosen: Sequence[LinkPath]) -> list[StoreWay]:
        """How a host dials this machine, the best way first; ``facts`` are what its agent says of it.

        ``chosen``: the paths of the ring between that host and this one, where they are neighbours.
        """
        theirs = _reachable(facts["addresses"])
        others = [*on_one_subnet(theirs, self._mine), *routed(theirs, self._mine)]
        found = [self._way(near, far, near.interface) for near, far in (path.ends for path in chosen)] + [
            self._way(end_of(near), end_of(far), None) for near, far in (other.ends for other in others)
        ]
        return list(dict.fromkeys(way for way in found if way is not None))

    def _way(self, near: LinkEnd, far: LinkEnd, interface: str | None) -> StoreWay | None:
        """From a host's ``near`` to this machine's ``far``; None where nothing listens there."""
        if far.address not in self._endpoints:
            return None
        _, port = parse_endpoint(self._endpoints[far.address])
        # A link-local address takes the host's own scope.
        address = seen_through(far.address, near.interface or "")
        return StoreWay(format_endpoint((address, port)), interface)

    async def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._child is None or self._child.returncode is not None:
            return
        assert self._child.stdin is not None
        self._child.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._child.wait(), _CLOSE_S)
        if self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


def _reachable(found: Sequence[Mapping[str, Any]]) -> list[Address]:
    """Of a host's addresses those that another host may reach, VPNs included."""
    return usable({"addresses": found}, {a["interface"] for a in found if a["kind"] != "loopback"})
