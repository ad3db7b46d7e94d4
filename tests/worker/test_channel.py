"""The worker's line to its agent: what it carries, and what happens when either end is slow or gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mlrun.errors import RunFailedError
from mlrun.protocol import (
    Bye,
    LogEvent,
    Plan,
    StepEvent,
    Stop,
    WorkerHello,
)
from mlrun.wire import decode, encode
from mlrun.worker.channel import MAX_WAITING, Channel

PLAN = Plan(generation=0, engine="ring", endpoints=[["127.0.0.1:1"]], hosts=["a"])
PROGRESS = StepEvent(1, 9, 0, 1, 8, 0.1, 0.0, 0.1, 0.0, 0.1, loss=None)


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    """A listening Unix socket at a short path."""
    with tempfile.TemporaryDirectory(prefix="mlrun") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(30)
        listener.bind(str(Path(folder) / "agent"))
        listener.listen()
        yield listener


def accept(agent: socket.socket) -> socket.socket:
    connection, _ = agent.accept()
    connection.settimeout(30)
    return connection


def test_messages_go_both_ways_and_a_stop_waits_to_be_asked_for(agent):
    channel = Channel(agent.getsockname())
    with accept(agent) as connection:
        channel.send(WorkerHello(local_rank=1, pid=2))
        assert decode(connection.makefile("rb").readline()) == WorkerHello(1, 2)
        assert channel.stop is None
        connection.sendall(encode(Stop("Ctrl-C")) + encode(PLAN))
        assert channel.receive(Plan, timeout_s=30) == PLAN
        assert channel.stop == Stop("Ctrl-C")
        channel.close()


def test_a_message_that_is_late_or_another_one_is_an_error_with_its_name(agent):
    channel = Channel(agent.getsockname())
    with accept(agent) as connection:
        with pytest.raises(RunFailedError, match="no Plan from the agent"):
            channel.receive(Plan, timeout_s=0.01)
        connection.sendall(encode(Bye()))
        with pytest.raises(RunFailedError, match="sent Bye where Plan was due"):
            channel.receive(Plan, timeout_s=30)
        channel.close()


def test_nobody_listening_is_an_error():
    with pytest.raises(RunFailedError, match="can't be opened"):
        Channel("/nonexistent/agent")


def test_closing_sends_all_that_waits(agent):
    channel = Channel(agent.getsockname())
    with accept(agent) as connection:
        for i in range(1000):
            channel.send(LogEvent(str(i)))
        closing = threading.Thread(target=channel.close)
        closing.start()
        lines = connection.makefile("rb").readlines()
        closing.join()
    assert [decode(line).text for line in lines] == [str(i) for i in range(1000)]


def test_an_agent_that_never_reads_costs_progress_and_not_training(agent):
    channel = Channel(agent.getsockname())
    with accept(agent):
        for _ in range(10 * MAX_WAITING):
            channel.send(PROGRESS)
        assert channel.dropped > 0
        channel.close(timeout_s=0.1)


BUSY_WORKER = """
import subprocess, sys
from mlrun.protocol import WorkerHello
from mlrun.worker.channel import Channel

channel = Channel(sys.argv[1])
loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
channel.send(WorkerHello(0, loader.pid))
while True:
    sum(range(1000))
"""


@pytest.mark.parametrize("ending", ["agent gone", "kill"])
def test_a_worker_ends_with_its_children_whatever_it_does(agent, ending):
    worker = subprocess.Popen(
        [sys.executable, "-c", BUSY_WORKER, agent.getsockname()], start_new_session=True
    )
    try:
        connection = accept(agent)
        hello = decode(connection.makefile("rb").readline())
        assert isinstance(hello, WorkerHello)
        loader = psutil.Process(hello.pid)
        if ending == "kill":
            connection.sendall(b'{"type":"Kill"}\n')
        else:
            connection.shutdown(socket.SHUT_RDWR)
        assert worker.wait(30) == -signal.SIGKILL
        psutil.wait_procs([loader], timeout=30)
        assert not loader.is_running() or loader.status() == psutil.STATUS_ZOMBIE
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
