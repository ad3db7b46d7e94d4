"""The agent alone: what it answers, what it keeps, and that no worker outlives it or its launcher."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlrun.protocol import (
    PROTOCOL_VERSION,
    Bye,
    Hello,
    HelloReply,
    Kill,
    LogEvent,
    Ping,
    Pong,
    StateEvent,
    WorkerExited,
    WorkerHello,
)

from .conftest import SECRET, TIMEOUT_S, AgentProcess

GONE_S = 15.0
"""TERM, a grace, KILL, and a slow machine."""


def test_it_says_who_it_is_and_leaves_at_bye(agent: AgentProcess) -> None:
    agent.send(Hello("run-1", "mac1", 30.0))
    reply = agent.receive(HelloReply)
    assert (reply.host, reply.pid, reply.protocol_version) == ("mac1", agent.child.pid, PROTOCOL_VERSION)
    assert reply.facts["cores"] >= 1
    agent.send(Ping(1.5))
    assert agent.receive(Pong).sent == 1.5
    agent.send(Bye())
    assert agent.child.wait(TIMEOUT_S) == 0


def test_it_loads_no_framework_and_is_light(agent: AgentProcess) -> None:
    agent.send(Hello("run-1", "mac1", 30.0))
    agent.receive(HelloReply)
    assert psutil.Process(agent.child.pid).memory_info().rss < 60 << 20
    code = (
        "import sys, mlrun.agent.__main__; print({'numpy', 'pydantic', 'yaml', 'torch'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_garbage_ends_it_with_a_sentence(agent: AgentProcess) -> None:
    assert agent.child.stdin is not None
    agent.child.stdin.write(b"GET / HTTP/1.1\n")
    agent.child.stdin.flush()
    assert agent.child.wait(TIMEOUT_S) == 1
    assert agent.child.stderr is not None
    assert b"not a JSON line" in agent.child.stderr.read()


def test_a_worker_is_reported_whole(agent: AgentProcess) -> None:
    """Its exit code, its last line without a line end, and a grandchild that holds its output open."""
    agent.start_worker("quitter")
    exited = agent.receive(WorkerExited)
    assert (exited.exit_code, exited.signal) == (7, None)
    assert exited.last_lines[-2:] == ["first line", "last line, without an end"]
    assert (agent.run_dir / "rank-0.log").read_text().endswith("first line\nlast line, without an end")
    assert {event.rank for event in agent.seen if isinstance(event, LogEvent | StateEvent)} == {0}
    assert not psutil.wait_procs(agent.processes(), timeout=GONE_S)[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_does_not_stop_the_worker(agent: AgentProcess) -> None:
    (agent.run_dir / "rank-0.log").symlink_to("/dev/full")
    agent.start_worker("chatterer")
    exited = agent.receive(WorkerExited)
    assert exited.last_lines[-1] == "line 99999"
    warnings = [e.text for e in agent.seen if isinstance(e, LogEvent) and e.level == "warning"]
    assert warnings == ["rank-0.log ends here: No space left on device"]


def test_the_secret_is_nowhere_to_be_seen(agent: AgentProcess) -> None:
    agent.start_worker("sleeper")
    pid = agent.receive(WorkerHello).pid
    agent.receive(StateEvent)
    worker = psutil.Process(pid)
    assert SECRET not in " ".join(worker.cmdline())
    assert SECRET not in worker.environ().values()
    assert not [p for p in agent.run_dir.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]


def test_kill_ends_even_what_ignores_term(agent: AgentProcess) -> None:
    agent.start_worker("deaf")
    while agent.receive(LogEvent).text != "deaf":
        pass
    processes = agent.processes()
    assert len(processes) >= 2

    agent.send(Kill())
    assert agent.receive(WorkerExited).signal == "SIGKILL"
    assert not psutil.wait_procs(processes, timeout=GONE_S)[1]
    assert agent.child.poll() is None


@pytest.mark.parametrize(
    "end",
    [
        lambda agent: agent.close_input(),
        lambda agent: agent.child.send_signal(signal.SIGTERM),
        lambda agent: agent.child.send_signal(signal.SIGKILL),
        lambda agent: agent.send(Bye()),
    ],
    ids=["launcher-gone", "SIGTERM", "SIGKILL", "Bye"],
)
def test_no_worker_outlives_its_agent_or_launcher(
    agent: AgentProcess, end: Callable[[AgentProcess], None]
) -> None:
    agent.start_worker("sleeper")
    agent.receive(StateEvent)
    processes = agent.processes()
    assert processes

    end(agent)
    agent.child.wait(TIMEOUT_S)
    assert not psutil.wait_procs(processes, timeout=GONE_S)[1]


def test_a_silent_launcher_loses_its_lease(agent: AgentProcess) -> None:
    agent.start_worker("sleeper", lease_s=8.0)
    pid = agent.receive(WorkerHello).pid
    agent.send(Ping(0.0))
    agent.receive(Pong)
    assert psutil.pid_exists(pid)

    assert agent.child.wait(TIMEOUT_S) == 1
    assert not psutil.pid_exists(pid)
    assert agent.child.stderr is not None
    assert b"nothing heard for 8 s" in agent.child.stderr.read()


@pytest.mark.parametrize("model", ["sleeper", "stuck"])
def test_a_stopped_agent_leaves_no_worker(agent: AgentProcess, model: str) -> None:
    """Not even one whose Python does nothing any more."""
    with agent.kept_lease():
        agent.start_worker(model, lease_s=8.0)
        if model == "stuck":
            while agent.receive(LogEvent).text != "stuck":
                pass
        else:
            agent.receive(StateEvent)
        workers = agent.processes()
        agent.child.send_signal(signal.SIGSTOP)
    assert workers
    deadline = time.monotonic() + 8.0 + GONE_S
    # A stopped parent doesn't collect its dead.
    while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_worker_starts_in_its_own_session_is_swept(agent: AgentProcess) -> None:
    agent.start_worker("parent")
    pid = -1
    while pid < 0:
        text = agent.receive(LogEvent).text
        pid = int(text) if text.isdigit() else -1
    grandchild = psutil.Process(pid)

    agent.send(Bye())
    assert agent.child.wait(TIMEOUT_S) == 0
    assert not psutil.wait_procs([grandchild], timeout=GONE_S)[1]
