"""Telemetry of hosts without a run: an agent on each, for as long as someone looks."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from mlrun.console import Console, open_hosts_console
from mlrun.errors import MlrunError, RunFailedError
from mlrun.hosts import Host
from mlrun.launch.here import on_this_machine
from mlrun.launch.ssh import SshTransport
from mlrun.launch.transport import LocalTransport, Transport
from mlrun.protocol import (
    Bye,
    Event,
    Hello,
    LogEvent,
    Ping,
)
from mlrun.wire import ProtocolError

LEASE_S = 30.0
CLOSE_S = 5.0


def top(hosts: Sequence[Host], *, console: str) -> None:
    """Show what ``hosts`` do until Ctrl-C or SIGTERM.

    Raises:
        RequestError: no such console.
        RunFailedError: none of the hosts tells anything (any more).
    """
    with open_hosts_console(console) as view:
        asyncio.run(_watch_all(hosts, view))


async def _watch_all(hosts: Sequence[Host], view: Console) -> None:
    here = await asyncio.to_thread(on_this_machine, hosts)
    run_id = f"top-{secrets.token_hex(4)}"
    transports: list[Transport] = [
        LocalTransport(host.name) if host.name in here else SshTransport(host, os.getcwd(), run_id)
        for host in hosts
    ]
    watching = [asyncio.ensure_future(_watch(transport, run_id, view)) for transport in transports]
    all_ended = asyncio.ensure_future(asyncio.wait(watching))
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    leaving = asyncio.ensure_future(asked.wait())
    await asyncio.wait([all_ended, leaving], return_when=asyncio.FIRST_COMPLETED)
    for task in (*watching, all_ended, leaving):
        task.cancel()
    await asyncio.gather(*watching, all_ended, leaving, return_exceptions=True)
    for transport in transports:
        transport.send(Bye())
    in_order = await asyncio.gather(*(transport.close(CLOSE_S) for transport in transports))
    await asyncio.gather(
        *(t.reap(run_id) for t, ended in zip(transports, in_order, strict=True) if not ended)
    )
    if not asked.is_set():
        raise RunFailedError("no host tells anything any more", fix="see what each of them said above")


async def _watch(transport: Transport, run_id: str, view: Console) -> None:
    """Pass on what one host tells; what goes wrong with it is said, and the others go on."""
    try:
        await transport.start()
        transport.send(Hello(run_id, transport.host, LEASE_S))
        renewing = asyncio.ensure_future(_keep_lease(transport))
        try:
            while (message := await transport.receive()) is not None:
                if isinstance(message, Event):
                    view.show(message)
        finally:
            renewing.cancel()
        why = await transport.last_words() or "its agent ended"
    except (MlrunError, ProtocolError) as error:
        why = str(error)
    view.show(LogEvent(why.replace("\n", " "), "error", host=transport.host))


async def _keep_lease(transport: Transport) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(LEASE_S / 6)
            transport.send(Ping(time.time()))
