"""An agent over ssh whose connection may break: it is taken up again for as long as the lease lasts.

Both ends keep what the other one hasn't received; a second ssh attaches to the agent, which has gone on, and
what was lost on the way is sent again.
"""

from __future__ import annotations

import asyncio
import time

from mlrun.errors import MlrunError
from mlrun.hosts import Host
from mlrun.launch.ssh import SshTransport
from mlrun.launch.transport import Transport
from mlrun.protocol import HelloReply, LogEvent, Ping, Received
from mlrun.wire import Message, ProtocolError, Unreceived, encode

RETRY_S = 1.0
_SSH_FAILED = 255
"""What ssh ends with when the connection broke; the program's own code is another."""


class _GoneError(Exception):
    """No agent is there any more."""


class LastingTransport(Transport):
    """The pipe to an agent that was told it is a lasting one."""

    def __init__(self, host: Host, workdir: str, run_id: str, lease_s: float) -> None:
        super().__init__(host.name)
        self._target = host
        self._workdir = workdir
        self._run_id = run_id
        self._lease_s = lease_s
        self._line = self._new_line()
        self._unreceived = Unreceived()
        self._received = 0
        self._heard = time.monotonic()
        self._socket: str | None = None
        self._away = False
        self._relayed = False
        self._closing = False

    async def start(self) -> None:
        await self._line.start()

    async def receive(self) -> Message | None:
        while True:
            message = await self._next()
            if message is None:
                lost = time.monotonic()
                if not await self._attach_again():
                    return None
                text = f"the connection had broken and is back after {time.monotonic() - lost:.1f} s"
                return LogEvent(text, "warning", host=self.host)
            self._heard = time.monotonic()
            if isinstance(message, Received):
                self._unreceived.received(message.count)
                continue
            self._received += 1
            if isinstance(message, HelloReply):
                self._socket = message.socket
            return message

    def send(self, message: Message) -> None:
        if isinstance(message, Ping):
            if self._away:
                return  # It would tell a wrong time later on.
            self._line.write(encode(Received(self._received)))
        line = encode(message)
        self._unreceived.add(line)
        self._line.write(line)

    async def close(self, timeout_s: float) -> bool:
        self._closing = True
        in_order = await self._line.close(0 if self._away else timeout_s)
        # Of an agent behind a relay nobody knows how it ended.
        return in_order and not self._relayed

    async def last_words(self) -> str:
        return await self._line.last_words()

    async def reap(self, run_id: str) -> None:
        await self._line.reap(run_id)

    def _new_line(self, *program: str) -> SshTransport:
        line = SshTransport(self._target, self._workdir, self._run_id)
        line.program = program or line.program
        return line

    async def _next(self) -> Message | None:
        """The next message; None where the connection broke, or where nothing came for half the lease."""
        if self._socket is None:
            return await self._line.receive()
        try:
            return await asyncio.wait_for(self._line.receive(), self._lease_s / 2)
        except asyncio.TimeoutError:
            return None

    async def _attach_again(self) -> bool:
        """Try until the lease is over; False where the agent is gone."""
        if self._socket is None or self._closing or not await _broke(self._line):
            return False
        self._away = True
        until = self._heard + self._lease_s
        while (left := until - time.monotonic()) > 0 and not self._closing:
            line = self._new_line("mlrun.agent.attach", self._socket)
            try:
                await asyncio.wait_for(self._go_on_over(line), left)
                return True
            except _GoneError:
                return False
            except (MlrunError, ProtocolError, asyncio.TimeoutError):
                await asyncio.sleep(RETRY_S)
            finally:
                if line is not self._line:
                    await line.close(0)
        return False

    async def _go_on_over(self, line: SshTransport) -> None:
        """Take up the stream over ``line``.

        Raises:
            RefusedError: no connection, and why.
            _GoneError: there was one, but no agent.
        """
        await line.start()
        line.send(Received(self._received))
        answer = await line.receive()
        if not isinstance(answer, Received):
            if await _broke(line):
                raise ProtocolError("the connection broke again")
            raise _GoneError
        broken, self._line = self._line, line
        self._relayed, self._away = True, False
        self._unreceived.received(answer.count)
        for sent in self._unreceived.lines():
            line.write(sent)
        await broken.close(0)


async def _broke(line: SshTransport) -> bool:
    """Whether ssh is to blame, and not the program at the far end."""
    code = await line.exit_code()
    return code is None or code < 0 or code == _SSH_FAILED
