"""One worker process (or one ``mpirun`` with all of them): started in its own session, ended whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeAlias

import psutil

TERM_GRACE_S = 3.0
"""Between TERM and KILL."""
DRAIN_S = 2.0
"""How long output may still come after the process has ended: a grandchild may hold the pipe."""
_HELD = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


Streams: TypeAlias = list[tuple[str, asyncio.StreamReader]]
"""(stdout | stderr, its reader) pairs."""


class Process:
    """A child with its own process group. Nothing of the group outlives it."""

    def __init__(self, child: subprocess.Popen[bytes], streams: Streams) -> None:
        self._child = child
        self.streams = streams
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code, or minus the signal, as subprocess says it."""
        threading.Thread(target=self._wait, args=(asyncio.get_running_loop(),), daemon=True).start()

    @classmethod
    async def start(cls, command: list[str], env: dict[str, str], cwd: Path | None) -> Process:
        """Start ``command`` with its output in pipes.

        Raises:
            OSError: the program or the folder isn't there.
        """
        child = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        return cls(
            child, [("stdout", await read_pipe(child.stdout)), ("stderr", await read_pipe(child.stderr))]
        )

    def is_held(self) -> bool:
        """Whether someone holds the process up: SIGSTOP, Ctrl-Z or a debugger."""
        try:
            return psutil.Process(self._child.pid).status() in _HELD
        except psutil.Error:
            return False

    async def end(self) -> None:
        """TERM, then KILL after a grace. Returns once the process has ended."""
        if not self.ended.done():
            self._signal(signal.SIGTERM)
            # A stopped process takes TERM only once it goes on.
            self._signal(signal.SIGCONT)
            await asyncio.wait([self.ended], timeout=TERM_GRACE_S)
        self._signal(signal.SIGKILL)
        await self.ended

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio's own wait() may last until the pipes close, which a grandchild can hold open.
        code = self._child.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._has_ended, code)

    def _has_ended(self, code: int) -> None:
        self._signal(signal.SIGKILL)
        self.ended.set_result(code)

    def _signal(self, number: signal.Signals) -> None:
        # macOS says PermissionError where only zombies are left in the group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


async def read_pipe(pipe: IO[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def follow_all(
    streams: Streams,
    follow: Callable[[asyncio.StreamReader, str], Awaitable[None]],
    ended: asyncio.Future[int],
) -> int:
    """Follow every stream until the process has ended and its streams too, the latter within ``DRAIN_S``."""
    readers = [asyncio.ensure_future(follow(stream, source)) for source, stream in streams]
    code = await ended
    _, pending = await asyncio.wait(readers, timeout=DRAIN_S)
    for reader in pending:
        reader.cancel()
    return code


def ending(code: int) -> tuple[int | None, str | None]:
    """(exit code, None) or (None, signal name) of what subprocess or a shell (128 + signal) says."""
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        with suppress(ValueError):
            return None, signal.Signals(number).name
    return code, None


class Fifo:
    """A named pipe that a process we don't start ourselves writes to."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self._reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # Held until the process has ended: without a writer the reader would see an end before the beginning.
        self._held = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    async def open(self) -> asyncio.StreamReader:
        return await read_pipe(os.fdopen(self._reading, "rb", buffering=0))

    def release(self, _: object = None) -> None:
        """From now on the last writer's end is the end of the stream."""
        os.close(self._held)


def exit_under_mpi(path: Path, mpirun_code: int) -> int:
    """How one process of mpirun ended; what has written nothing was ended by mpirun, because of another."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return mpirun_code if mpirun_code == 0 else -signal.SIGTERM
