"""A lasting agent outlives its connection, and over the next one nothing is lost or comes twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from mlrun.protocol import Bye, HelloReply, Kill, LogEvent, Ping, Pong, Received, StateEvent, WorkerExited
from mlrun.wire import Message, decode, encode

from .conftest import TIMEOUT_S, AgentProcess


class Relay:
    """``python -m mlrun.agent.attach``, as a second ssh runs it."""

    def __init__(self, socket: str, received: int) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "mlrun.agent.attach", socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.send(Received(received))

    def send(self, message: Message) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(encode(message))
        self.child.stdin.flush()

    def messages(self) -> Iterator[Message]:
        assert self.child.stdout is not None
        yield from map(decode, self.child.stdout)


@contextmanager
def attached(socket: str | None, received: int) -> Iterator[Relay]:
    assert socket is not None
    relay = Relay(socket, received)
    yield relay
    relay.child.kill()
    relay.child.communicate()


def counted(agent: AgentProcess) -> int:
    return sum(not isinstance(message, Received) for message in agent.seen)


def test_what_was_lost_on_the_way_comes_again(agent: AgentProcess) -> None:
    agent.start_worker("sleeper", lasting=True)
    socket = agent.receive(HelloReply).socket
    state = agent.receive(StateEvent)
    workers = agent.processes()
    agent.close_input()
    # As if the worker's state, and nothing before it, had been lost.
    with attached(socket, counted(agent) - 1) as relay:
        messages = relay.messages()
        assert next(messages) == Received(2)  # Hello and StartWorkers
        assert next(messages) == state
        relay.send(Ping(1.5))
        assert next(m for m in messages if isinstance(m, Pong)).sent == 1.5
        assert all(worker.is_running() for worker in workers)
        relay.send(Kill())
        assert next(m for m in messages if isinstance(m, WorkerExited)).rank == 0
        relay.send(Bye())
        assert agent.child.wait(TIMEOUT_S) == 0
        assert relay.child.wait(TIMEOUT_S) == 0


def test_a_new_connection_replaces_one_that_only_seems_alive(agent: AgentProcess) -> None:
    agent.start_worker("sleeper", lasting=True)
    socket = agent.receive(HelloReply).socket
    agent.receive(StateEvent)
    with attached(socket, 0) as relay:
        messages = relay.messages()
        assert next(messages) == Received(2)
        assert isinstance(next(messages), HelloReply)
        with attached(socket, counted(agent)) as other:
            others = other.messages()
            assert next(others) == Received(2)
            assert relay.child.wait(TIMEOUT_S) == 0
            other.send(Received(counted(agent)))
            assert next(m for m in others if isinstance(m, Received)) == Received(2)
            other.send(Bye())
            assert agent.child.wait(TIMEOUT_S) == 0


def test_a_launcher_that_does_not_come_back_loses_its_lease(agent: AgentProcess) -> None:
    agent.start_worker("sleeper", lease_s=6.0, lasting=True)
    socket = agent.receive(HelloReply).socket
    agent.receive(StateEvent)
    workers = agent.processes()
    agent.close_input()
    assert agent.child.wait(TIMEOUT_S) == 1
    assert not psutil.wait_procs(workers, timeout=15)[1]
    with attached(socket, 0) as relay:
        assert relay.child.wait(TIMEOUT_S) == 1
        assert relay.child.stderr is not None
        assert b"the agent is gone" in relay.child.stderr.read()


def test_what_a_worker_says_meanwhile_is_bounded(agent: AgentProcess) -> None:
    """Of a hundred thousand lines a launcher that was away gets some, and is told of the rest."""
    agent.start_worker("chatterer", lasting=True)
    socket = agent.receive(HelloReply).socket
    agent.close_input()
    with attached(socket, counted(agent)) as relay:
        messages = relay.messages()
        said = []
        while not isinstance(message := next(messages), WorkerExited):
            said.append(message)
        assert message.last_lines[-1] == "line 99999"
        assert any("only in" in m.text for m in said if isinstance(m, LogEvent))
