"""The worker's line to its agent: a Unix socket with one JSON message per line."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from typing import NoReturn, TypeVar

from mlrun.errors import ExitCode, RunFailedError
from mlrun.protocol import (
    Event,
    Kill,
    Ping,
    StepEvent,
    Stop,
    WorkerStart,
)
from mlrun.wire import Message, ProtocolError, decode, encode
from mlrun.worker.watchdog import Watchdog

M = TypeVar("M", bound=Message)

MAX_WAITING = 4096
"""Messages that may wait for a slow agent. Past it, progress is dropped and the rest waits a little."""

MAX_BLOCK_S = 5.0
"""The longest that sending may hold up training."""

LAST_WORDS_S = 1.0
"""Between the loss of the agent and the end of this process."""


class Channel:
    """Messages to and from the agent. Thread-safe.

    Once the agent is gone (end of its socket), nothing watches over this process any more: it ends itself and
    its process group, whatever the main thread does. So a dead agent leaves nothing behind, and one that
    is silent for longer than the lease neither.
    """

    def __init__(self, path: str) -> None:
        """Connect to the agent's socket at ``path``.

        Raises:
            RunFailedError: nobody listens there.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise RunFailedError(f"the agent's socket {path} can't be opened: {error.strerror}") from error
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._outbox: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._watchdog: Watchdog | None = None
        self._stop: Stop | None = None
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="mlrun-channel-write", daemon=True)
        self._reader = threading.Thread(target=self._read, name="mlrun-channel-read", daemon=True)
        self._writer.start()
        self._reader.start()

    @property
    def stop(self) -> Stop | None:
        """The launcher's wish to finish the step, save and end; None as long as there is none."""
        return self._stop

    @property
    def dropped(self) -> int:
        """Progress messages that a slow agent never got."""
        return self._dropped

    def send(self, message: Message) -> None:
        """Hand ``message`` over to be sent; returns at once unless thousands are waiting already."""
        droppable = isinstance(message, StepEvent)
        try:
            self._outbox.put(message, block=not droppable, timeout=MAX_BLOCK_S)
        except queue.Full:
            self._dropped += 1

    def receive(self, kind: type[M], timeout_s: float) -> M:
        """The next message of the agent, which must be a ``kind``.

        Raises:
            RunFailedError: none came in time, or another one.
        """
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise RunFailedError(f"no {kind.__name__} from the agent within {timeout_s:.0f} s") from None
        if not isinstance(message, kind):
            raise RunFailedError(f"the agent sent {type(message).__name__} where {kind.__name__} was due")
        return message

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits, for ``timeout_s`` at most, and hang up."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._outbox.put(None, timeout=timeout_s)
        self._writer.join(timeout_s)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._reader.join(timeout_s)
        if self._watchdog is not None:
            self._watchdog.close()

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._socket.sendall(encode(message))
            except OSError:
                return  # the reader sees the end of the socket too, and acts on it

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._take(line)
        if not self._closing.is_set():
            self._closing.set()
            time.sleep(LAST_WORDS_S)
            end_process_group()

    def _take(self, line: bytes) -> None:
        try:
            message = decode(line)
        except ProtocolError as error:
            print(f"mlrun: the agent sent an unknown message: {error}", flush=True)
            return
        if isinstance(message, WorkerStart) and message.lease_s is not None:
            self._watchdog = Watchdog(message.lease_s)
        if isinstance(message, Ping):
            if self._watchdog is not None:
                self._watchdog.renew()
        elif isinstance(message, Stop):
            self._stop = self._stop or message
        elif isinstance(message, Kill):
            end_process_group()
        elif not isinstance(message, Event):
            self._inbox.put(message)


def end_process_group() -> NoReturn:
    """End this process at once, with its loader workers where it leads a process group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.RUN_FAILED)
