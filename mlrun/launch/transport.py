"""How the launcher reaches an agent: messages both ways over the pipes of one child process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from mlrun.agent.reap import reap
from mlrun.errors import RunFailedError
from mlrun.wire import Message, ProtocolError, decode, encode

LINE_LIMIT = 1 << 24
"""Bytes of the longest message that is read."""
_STDERR_LINES = 20


class Transport(ABC):
    """The pipe to the agent on ``host``."""

    def __init__(self, host: str) -> None:
        self.host = host

    @abstractmethod
    async def start(self) -> None:
        """Start the agent.

        Raises:
            RunFailedError: the program that should carry the messages can't be started.
        """

    @abstractmethod
    async def receive(self) -> Message | None:
        """The agent's next message; None once there are no more.

        Raises:
            ProtocolError: what came isn't a message.
        """

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue a message. A lost agent shows in ``receive``, not here."""

    @abstractmethod
    async def close(self, timeout_s: float) -> bool:
        """Wait for the agent to end by itself; after ``timeout_s`` it is killed. True: it ended in order."""

    @abstractmethod
    async def last_words(self) -> str:
        """How the agent ended and the end of its stderr, for a message. Asked once ``receive`` gave None."""

    @abstractmethod
    async def reap(self, run_id: str) -> None:
        """End what a lost agent may have left of the run on its host."""


class ChildTransport(Transport):
    """A child process carries the messages on its stdin and stdout; its stderr is text for people.

    It has a session of its own: Ctrl-C in the terminal doesn't reach it.
    """

    _child: asyncio.subprocess.Process | None = None

    async def _spawn(self, command: Sequence[str]) -> None:
        try:
            self._child = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                limit=LINE_LIMIT,
                start_new_session=True,
            )
        except OSError as error:
            raise RunFailedError(f"the agent on {self.host} can't be started: {error}") from error
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._in = self._child.stdin
        self._out = self._child.stdout
        self._words: deque[str] = deque(maxlen=_STDERR_LINES)
        self._listening = asyncio.ensure_future(self._listen(self._child.stderr))

    async def receive(self) -> Message | None:
        try:
            line = await self._out.readline()
        except ValueError as error:
            raise ProtocolError(f"a line of more than {LINE_LIMIT} bytes") from error
        return decode(line) if line.endswith(b"\n") else None

    def send(self, message: Message) -> None:
        self.write(encode(message))

    def write(self, line: bytes) -> None:
        """Queue what ``encode`` made."""
        if self._child is not None and not self._in.is_closing():
            self._in.write(line)

    async def exit_code(self) -> int | None:
        """How the child ended, as subprocess says it; None while it runs."""
        if self._child is None:
            return None
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._child.wait(), timeout=1)
        return self._child.returncode

    async def close(self, timeout_s: float) -> bool:
        if self._child is None:
            return True
        self._in.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._child.wait(), timeout_s)
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            await self._child.wait()
        await asyncio.wait([self._listening], timeout=1)
        return self._child.returncode == 0

    async def last_words(self) -> str:
        if self._child is None:
            return ""
        await asyncio.wait([asyncio.ensure_future(self._child.wait()), self._listening], timeout=1)
        code = self._child.returncode
        how = "" if code is None else f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return ": ".join(part for part in (how, " / ".join(self._words)) if part)

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        with suppress(ValueError):
            while line := await stderr.readline():
                self._words.append(line.decode(errors="replace").rstrip())


class LocalTransport(ChildTransport):
    """An agent on this machine."""

    async def start(self) -> None:
        await self._spawn([sys.executable, "-m", "mlrun.agent"])

    async def reap(self, run_id: str) -> None:
        await asyncio.to_thread(reap, run_id)
