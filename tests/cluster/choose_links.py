"""``python -m tests.cluster.choose_links SPEC``: let the agents measure, and print what is chosen as JSON.

SPEC is JSON: ``hosts`` and ``network`` as in a job spec. Errors are printed as a user reads them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from typing import Any

from mlrun.errors import MlrunError
from mlrun.hosts import hosts_of_spec
from mlrun.launch.linking import Linking
from mlrun.launch.ssh import SshTransport
from mlrun.protocol import (
    Bye,
    Hello,
    HelloReply,
    LinkListening,
    LinkMeasured,
    LogEvent,
    StateEvent,
)
from mlrun.spec import JobSpec
from mlrun.spec.training import Model
from mlrun.wire import Message


async def survey(spec: JobSpec) -> dict[str, Any]:
    hosts = hosts_of_spec(spec.hosts)
    transports = {host.name: SshTransport(host, "/tmp", "survey") for host in hosts}
    try:
        await asyncio.gather(*(transport.start() for transport in transports.values()))
        facts = {}
        for name, transport in transports.items():
            transport.send(Hello("survey", name, 30.0))
            reply = await transport.receive()
            assert isinstance(reply, HelloReply)
            facts[name] = reply.facts
        linking = Linking(hosts, facts, spec, secrets.token_hex(32))
        start = time.monotonic()
        await _conduct(linking, transports)
        seconds = time.monotonic() - start
        linking.choose([])
        lines: list[str] = []
        edges: list[Any] = []
        for event in linking.announcement():
            if isinstance(event, LogEvent):
                lines.append(event.text)
            elif isinstance(event, StateEvent):
                edges = event.detail["edges"]
        warnings = [e.text for e in linking.warnings(len(hosts), 25_000_000) if isinstance(e, LogEvent)]
        return {"seconds": seconds, "edges": edges, "lines": lines, "warnings": warnings}
    finally:
        for transport in transports.values():
            transport.send(Bye())
        await asyncio.gather(*(transport.close(10) for transport in transports.values()))


async def _conduct(linking: Linking, transports: dict[str, SshTransport]) -> None:
    inbox: asyncio.Queue[tuple[str, Message | None]] = asyncio.Queue()

    async def read(name: str, transport: SshTransport) -> None:
        while (message := await transport.receive()) is not None:
            await inbox.put((name, message))
        await inbox.put((name, None))

    readers = [asyncio.ensure_future(read(*item)) for item in transports.items()]
    outbox = linking.begin()
    while not linking.done:
        for host, message in outbox:
            transports[host].send(message)
        host, heard = await asyncio.wait_for(inbox.get(), 20)
        assert heard is not None, f"the agent on {host} ended"
        outbox = linking.heard(host, heard) if isinstance(heard, LinkListening | LinkMeasured) else []
    for reader in readers:
        reader.cancel()


def main() -> int:
    fields = {"name": "survey", "model": Model(name="mlp"), "steps": 1, "batch_size": 1}
    spec = JobSpec.model_validate(fields | json.loads(sys.argv[1]))
    try:
        print(json.dumps(asyncio.run(survey(spec))))
    except MlrunError as error:
        print(error)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
