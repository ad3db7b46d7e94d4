"""``python -m tests.cluster.greet HOST...``: greet the agents of these hosts and say goodbye.

A host is its JSON (the fields of ``Host``). Prints a line for each: the agent's host name, working folder's
Python version and round trip, or the error a user would read; exits with the error's code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from mlrun.errors import MlrunError
from mlrun.hosts import Host
from mlrun.launch.ssh import SshTransport
from mlrun.protocol import (
    Bye,
    Hello,
    HelloReply,
    Ping,
    Pong,
)


async def greet(host: Host) -> int:
    transport = SshTransport(host, os.getcwd())
    try:
        await transport.start()
    except MlrunError as error:
        print(error, flush=True)
        return int(error.exit_code)
    transport.send(Hello("greeting", host.name, lease_s=5.0))
    transport.send(Ping(1.5))
    reply, pong = await transport.receive(), await transport.receive()
    assert isinstance(reply, HelloReply), reply
    assert isinstance(pong, Pong), pong
    print(f"{host.name}: pid {reply.pid}, Python {reply.facts['python']}, pong {pong.sent}", flush=True)
    transport.send(Bye())
    return 0 if await transport.close(timeout_s=10) else 1


async def main() -> int:
    hosts = [Host(**json.loads(text)) for text in sys.argv[1:]]
    return max(await asyncio.gather(*map(greet, hosts)))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
