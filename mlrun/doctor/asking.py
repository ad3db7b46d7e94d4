"""What checks ask of agents: who they are, and how fast the links between them are."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from mlrun.errors import RefusedError
from mlrun.launch.linking import Linking
from mlrun.launch.station import Station
from mlrun.protocol import PROTOCOL_VERSION, Hello, HelloReply, LinkListening, LinkMeasured, LogEvent
from mlrun.spec import JobSpec
from mlrun.wire import Message, ProtocolError

ANSWER_S = 30.0
LEASE_S = 120.0


async def reach(at: Station, run_id: str) -> None:
    """Start the agent of ``at`` and greet it.

    Raises:
        RefusedError, RunFailedError: why that isn't possible.
    """
    await at.start()
    at.transport.send(Hello(run_id, at.name, LEASE_S))


async def reply_of(at: Station) -> HelloReply:
    """What the agent of ``at`` answers.

    Raises:
        RefusedError: no answer, or one of another version of mlrun.
    """
    try:
        while (message := await asyncio.wait_for(at.transport.receive(), ANSWER_S)) is not None:
            if isinstance(message, HelloReply):
                if message.protocol_version != PROTOCOL_VERSION:
                    raise RefusedError(
                        f"{at.name} has another version of mlrun",
                        fix="install the same on it: mlrun hosts install",
                    )
                return message
        why = await at.transport.last_words() or "it ended"
    except asyncio.TimeoutError:
        why = f"no answer within {ANSWER_S:.0f} s"
    except ProtocolError as error:
        why = str(error)
    raise RefusedError(f"the agent on {at.name}: {why}", fix="install the same mlrun there")


async def measure_links(
    stations: Sequence[Station], facts: Mapping[str, Mapping[str, Any]], spec: JobSpec
) -> tuple[list[str], list[str]]:
    """The links a run would use between ``stations``, and warnings about them, as lines for people.

    Raises:
        RefusedError: some hosts can't reach each other, or an agent is too slow.
    """
    linking = Linking([at.host for at in stations], facts, spec, secrets.token_hex(32))
    by_name = {at.name: at for at in stations}
    outbox = linking.begin()
    inbox: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
    readers = [asyncio.ensure_future(_pass_on(at, inbox)) for at in stations]
    try:
        while not linking.done:
            for name, message in outbox:
                by_name[name].transport.send(message)
            name, heard = await asyncio.wait_for(inbox.get(), ANSWER_S)
            outbox = linking.heard(name, heard) if isinstance(heard, LinkListening | LinkMeasured) else []
    except asyncio.TimeoutError:
        raise RefusedError(f"the agents didn't measure their links within {ANSWER_S:.0f} s") from None
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    linking.choose([])
    return _texts(linking.announcement()), _texts(linking.warnings(len(stations), None))


async def _pass_on(at: Station, inbox: asyncio.Queue[tuple[str, Message]]) -> None:
    while (message := await at.transport.receive()) is not None:
        await inbox.put((at.name, message))


def _texts(events: Sequence[object]) -> list[str]:
    return [event.text for event in events if isinstance(event, LogEvent)]
