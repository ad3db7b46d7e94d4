"""A real agent process, spoken to over its pipes as a launcher does."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

import psutil
import pytest

from mlrun.protocol import (
    Assignment,
    Hello,
    Ping,
    StartWorkers,
)
from mlrun.spec import JobSpec
from mlrun.wire import Message, decode, encode

M = TypeVar("M", bound=Message)
TIMEOUT_S = 60.0
SECRET = secrets.token_hex(32)

# A model whose making is the misbehaviour: it runs in the worker, before any training.
ODD = """
import ctypes, os, signal, subprocess, sys, time

def sleeper(**_):
    while True:
        time.sleep(1)

def chatterer(**_):
    for line in range(100_000):
        print("line", line)
    sys.stdout.flush()
    os._exit(0)

def deaf(**_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", child])
    sleeper()

def stuck(**_):
    # A call that holds the GIL: no thread of Python's runs any more.
    print("stuck", flush=True)
    ctypes.PyDLL(None).sleep(600)

def parent(**_):
    child = "import time; time.sleep(600)"
    print(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid, flush=True)
    sleeper()

def quitter(**_):
    # The child keeps our stdout open after we are gone.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("first line")
    print("last line, without an end", end="", flush=True)
    os._exit(7)
"""


class AgentProcess:
    """``python -m mlrun.agent`` with its messages decoded."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.child = subprocess.Popen(
            [sys.executable, "-m", "mlrun.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=run_dir,
            start_new_session=True,
        )
        self.seen: list[Message] = []
        self._queue: Queue[Message | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Message) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(encode(message))
        self.child.stdin.flush()

    def receive(self, kind: type[M]) -> M:
        """The next message of a kind; others are kept in ``seen``."""
        while (message := self._queue.get(timeout=TIMEOUT_S)) is not None:
            self.seen.append(message)
            if isinstance(message, kind):
                return message
        pytest.fail(f"the agent ended without a {kind.__name__}; it said {self.seen[-5:]}")

    def start_worker(self, model: str, lease_s: float = 30.0, *, lasting: bool = False) -> None:
        """One worker of a world of one, building ``odd:<model>``."""
        (self.run_dir / "odd.py").write_text(ODD)
        self.send(Hello("run-1", "here", lease_s, lasting))
        spec = JobSpec.model_validate(
            {
                "name": "odd",
                "model": {"name": f"odd:{model}"},
                "data": {"source": "digits"},
                "batch_size": 8,
                "steps": 1,
            }
        )
        assignment = Assignment(0, 1, 0, 1, "here")
        self.send(StartWorkers([assignment], spec.model_dump(mode="json"), str(self.run_dir), SECRET))

    @contextmanager
    def kept_lease(self) -> Iterator[None]:
        """Ping once a second, as a launcher does."""
        done = threading.Event()

        def ping() -> None:
            while not done.wait(1.0):
                self.send(Ping(0.0))

        thread = threading.Thread(target=ping, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def processes(self) -> list[psutil.Process]:
        """The workers and what they started."""
        return psutil.Process(self.child.pid).children(recursive=True)

    def close_input(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._queue.put(decode(line))
        self._queue.put(None)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path)
    yield process
    process.child.kill()
    process.child.wait()
    for stream in (process.child.stdin, process.child.stdout, process.child.stderr):
        assert stream is not None
        stream.close()
