"""The agent of one host: between the launcher (stdin, stdout) and the workers (a Unix socket).

It holds the lease: when the launcher is gone or silent, no worker stays.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mlrun.agent.awake import keep_awake
from mlrun.agent.channel import Channels
from mlrun.agent.link_probe import LinkProbe
from mlrun.agent.pipe import LINE_LIMIT, Pipe
from mlrun.agent.reap import sweep
from mlrun.agent.team import Team
from mlrun.agent.telemetry import Telemetry
from mlrun.data.look import look
from mlrun.probe.system import facts
from mlrun.protocol import (
    PROTOCOL_VERSION,
    Bye,
    Event,
    Hello,
    HelloReply,
    Kill,
    LinkListen,
    LinkListening,
    LinkTry,
    LookAtData,
    Ping,
    Plan,
    Pong,
    Received,
    StartWorkers,
    Stop,
)
from mlrun.wire import Message, ProtocolError, decode

HELLO_S = 60.0
"""How long a launcher may take to say Hello."""
TELEMETRY_S = 1.0
WORKERS_LEASE_MORE_S = 3.0
"""An agent that can still act ends its workers in order; they end themselves only a little later."""
_FLUSH_S = 2.0
_SOCKET_PATH_LIMIT = 100
"""Bytes: macOS holds 104 with the closing zero."""


class Agent:
    """One run on one host, from Hello to Bye."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._descriptors = stdin, stdout
        self._host = socket.gethostname()
        self._run_id = ""
        self._lease_s = HELLO_S
        self._heard = time.monotonic()
        self._ended = asyncio.Event()
        self._team: Team | None = None
        self._probe: LinkProbe | None = None
        self._probing: set[asyncio.Task[None]] = set()
        self._telling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._door: asyncio.AbstractServer | None = None

    async def run(self) -> int:
        """Serve until Bye (0), or until the lease is over or a signal comes (1). No worker is left."""
        self._pipe = await Pipe.open(*self._descriptors)
        self._folder = _short_folder()
        self._channels = Channels(self._folder / "agent.sock", self._forward, self._pipe.drain)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        serving = asyncio.ensure_future(self._serve())
        watching = [asyncio.ensure_future(wait) for wait in (self._lease(), self._ended.wait())]
        try:
            await asyncio.wait([serving, *watching], return_when=asyncio.FIRST_COMPLETED)
            return 0 if serving.done() and serving.result() else 1
        finally:
            for task in (serving, *watching):
                task.cancel()
            await self._clean_up()

    async def _clean_up(self) -> None:
        self._end_probes()
        if self._telling is not None:
            self._telling.cancel()
        if self._door is not None:
            self._door.close()
        if self._team is not None:
            await self._team.end()
            await asyncio.to_thread(sweep, self._run_id)
        await self._channels.close()
        await self._pipe.close(_FLUSH_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self) -> bool:
        """Handle the launcher's messages; True once it said Bye, False where it is gone."""
        try:
            while (message := await self._pipe.read()) is not None:
                self._heard = time.monotonic()
                if isinstance(message, Bye):
                    return True
                await self._handle(message)
        except ProtocolError as error:
            self._complain(str(error))
        return False

    async def _handle(self, message: Message) -> None:
        if isinstance(message, Hello):
            self._host, self._run_id, self._lease_s = message.host, message.run_id, message.lease_s
            socket_path = await self._open_door() if message.lasting else None
            self._pipe.send(HelloReply(self._host, os.getpid(), facts(), PROTOCOL_VERSION, socket_path))
            self._telling = self._telling or asyncio.create_task(self._tell_telemetry())
            keep_awake()
        elif isinstance(message, LinkListen):
            self._end_probes()
            self._probe = LinkProbe(message.secret)
            self._pipe.send(LinkListening(self._probe.listen(message.ends, message.ports)))
        elif isinstance(message, LinkTry) and self._probe is not None:
            task = asyncio.create_task(self._measure(self._probe, message))
            self._probing.add(task)
            task.add_done_callback(self._probing.discard)
        elif isinstance(message, LookAtData):
            self._looking = asyncio.create_task(self._look(message))
        elif isinstance(message, StartWorkers):
            self._end_probes()
            self._team = Team(
                message,
                self._run_id,
                self._folder,
                self._channels,
                self._forward,
                lease_s=self._lease_s + WORKERS_LEASE_MORE_S,
            )
        elif isinstance(message, Plan | Stop):
            self._channels.send_all(message)
        elif isinstance(message, Ping):
            self._pipe.send(Pong(message.sent, time.time()))
            self._channels.send_all(message)
        elif isinstance(message, Kill) and self._team is not None:
            await self._team.end()

    async def _tell_telemetry(self) -> None:
        telemetry = Telemetry()
        try:
            while True:
                await asyncio.sleep(TELEMETRY_S)
                self._pipe.send(telemetry.event(self._host))
                if self._team is not None:
                    self._team.tell_held()
        finally:
            telemetry.close()

    async def _look(self, request: LookAtData) -> None:
        self._pipe.send(await asyncio.to_thread(look, request))

    async def _measure(self, probe: LinkProbe, request: LinkTry) -> None:
        self._pipe.send(await probe.measure(request))

    def _end_probes(self) -> None:
        for task in self._probing:
            task.cancel()
        if self._probe is not None:
            self._probe.close()

    async def _lease(self) -> None:
        """Return once the launcher was silent for longer than the lease."""
        while (left := self._heard + self._lease_s - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._complain(f"nothing heard for {self._lease_s:g} s")

    async def _open_door(self) -> str:
        """From now on the launcher may come back over another connection; where it has to knock."""
        self._pipe.lasting = True
        path = str(self._folder / "launcher.sock")
        self._door = await asyncio.start_unix_server(self._knocked, path, limit=LINE_LIMIT)
        return path

    async def _knocked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = decode(await asyncio.wait_for(reader.readline(), self._lease_s))
        except (ProtocolError, ValueError, ConnectionError, asyncio.TimeoutError):
            first = None
        if not isinstance(first, Received):
            writer.close()
            return
        self._heard = time.monotonic()
        await self._pipe.attach(reader, writer, first.count)

    def _complain(self, text: str) -> None:
        with suppress(OSError):  # Whoever listened may be gone.
            print(f"mlrun agent on {self._host}: {text}", file=sys.stderr)

    def _forward(self, message: Message, rank: int) -> None:
        if isinstance(message, Event):
            message = replace(
                message,
                rank=rank if message.rank is None else message.rank,
                host=self._host if message.host is None else message.host,
            )
        self._pipe.send(message)


def _short_folder() -> Path:
    """A folder of our own whose path leaves room for a Unix socket; macOS's TMPDIR is long."""
    for base in (tempfile.gettempdir(), "/tmp"):
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="mlrun-", dir=base))
            if len(os.fsencode(folder / "launcher.sock")) < _SOCKET_PATH_LIMIT:
                return folder
            folder.rmdir()
    raise OSError("no temporary folder with a path short enough for a Unix socket; set TMPDIR to a short one")
