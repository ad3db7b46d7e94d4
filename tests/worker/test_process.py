"""The worker as a process, with the test as its agent and launcher."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlrun.protocol import (
    Assignment,
    FailureEvent,
    Listening,
    Plan,
    StateEvent,
    StepEvent,
    Stop,
    WorkerHello,
    WorkerStart,
)
from mlrun.spec import JobSpec
from mlrun.wire import Message, decode, encode
from mlrun.worker import checkpoint

pytest.importorskip("torch")

SPEC = {
    "name": "digits",
    "model": {"name": "mlp"},
    "data": {"source": "digits", "workers": 0},
    "global_batch_size": 64,
    "steps": 5,
    "threads": 1,
    "device": "cpu",
    "log_every": 1,
}

ENDLESS = 1_000_000


class Worker:
    """One worker process and the agent's end of its line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.heard: list[Message] = []

    def attach(self, connection: socket.socket, lines: Any) -> None:
        self.connection, self._lines = connection, lines

    def tell(self, message: Message) -> None:
        self.connection.sendall(encode(message))

    def hear(self, kind: type[Any], until: Callable[[Any], bool] = lambda m: True) -> Any:
        """Listen until such a message comes."""
        for line in self._lines:
            self.heard.append(decode(line))
            if isinstance(self.heard[-1], kind) and until(self.heard[-1]):
                return self.heard[-1]
        raise AssertionError(f"no such {kind.__name__} in {self.heard}")

    def end(self) -> int:
        """Listen to the end; returns the exit code."""
        with contextlib.suppress(ConnectionResetError):
            self.heard += [decode(line) for line in self._lines]
        return self.process.wait(60)

    def failure(self) -> FailureEvent:
        (event,) = [m for m in self.heard if isinstance(m, FailureEvent)]
        return event

    def done(self) -> dict[str, Any]:
        last = self.heard[-1]
        assert isinstance(last, StateEvent), last
        assert last.state == "done"
        return last.detail


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Worker]]]:
    """Start the workers of a run, and bring them to where they train."""
    path = f"/tmp/mlrun-test-{secrets.token_hex(6)}"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(60)
        listener.bind(path)
        stack.callback(os.unlink, path)
        listener.listen()

        def run(ranks: int = 1, **keys: Any) -> list[Worker]:
            workers = [Worker(_process(path, r, tmp_path)) for r in range(ranks)]
            for worker in workers:
                stack.callback(_kill, worker.process)
            start = _starts(ranks, JobSpec.model_validate({**SPEC, **keys}), tmp_path)
            for _ in workers:
                connection = stack.enter_context(listener.accept()[0])
                connection.settimeout(120)
                lines = stack.enter_context(connection.makefile("rb"))
                hello = decode(lines.readline())
                assert isinstance(hello, WorkerHello)
                workers[hello.local_rank].attach(connection, lines)
                workers[hello.local_rank].tell(start[hello.local_rank])
            if ranks > 1:
                endpoints = [worker.hear(Listening).endpoints for worker in workers]
                plan = Plan(0, "ring", endpoints, [f"host{r}" for r in range(ranks)])
                for worker in workers:
                    worker.tell(plan)
            return workers

        yield run


def _process(path: str, local_rank: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"rank-{local_rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mlrun.worker"],
            env={**os.environ, "MLRUN_AGENT_SOCKET": path, "MLRUN_LOCAL_RANK": str(local_rank)},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _starts(ranks: int, spec: JobSpec, folder: Path) -> list[WorkerStart]:
    secret = secrets.token_hex(32)
    plain = spec.model_dump(mode="json")
    return [
        WorkerStart(Assignment(r, ranks, r, ranks, f"host{r}"), plain, str(folder), secret)
        for r in range(ranks)
    ]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_one_worker_trains_saves_and_ends_well(start, tmp_path):
    (worker,) = start()
    assert worker.end() == 0
    states = [m.state for m in worker.heard if isinstance(m, StateEvent)]
    assert states[0] == "starting"
    assert "connecting" not in states
    assert worker.done()["step"] == 5
    assert all((m.rank, m.host) == (0, "host0") for m in worker.heard)
    assert checkpoint.read(checkpoint.latest(tmp_path / "checkpoints")).step == 5


def test_two_workers_stop_after_the_same_step_and_agree(start, tmp_path):
    workers = start(2, steps=ENDLESS)
    workers[0].hear(StepEvent)
    workers[1].tell(Stop("Ctrl-C"))
    assert [w.end() for w in workers] == [0, 0]
    details = [w.done() for w in workers]
    assert {d["reason"] for d in details} == {"stopped"}
    assert len({(d["step"], d["hash"]) for d in details}) == 1
    state = checkpoint.read(checkpoint.latest(tmp_path / "checkpoints"))
    assert (state.step, state.hash) == (details[0]["step"], details[0]["hash"])
    traced = json.loads((tmp_path / "timeline-rank-1.json").read_text())["traceEvents"]
    assert any(e["name"].startswith("all_reduce:") for e in traced)


def test_an_exception_on_one_rank_is_the_cause_and_frees_the_other(start, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, torch\n"
        "class Model(torch.nn.Linear):\n"
        "    calls = 0\n"
        "    def __init__(self): super().__init__(64, 10)\n"
        "    def forward(self, x):\n"
        "        Model.calls += 1\n"
        "        if Model.calls == 3 and os.environ['RANK'] == '1': raise ValueError('no such pixel')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    workers = start(2, steps=ENDLESS, model={"name": "mine:Model"}, workdir=str(tmp_path))
    assert [w.end() for w in workers] == [1, 1]
    cause, consequence = workers[1].failure(), workers[0].failure()
    assert (cause.kind, cause.consequence) == ("exception", False)
    assert cause.message == "ValueError: no such pixel"
    assert any("mine.py" in line for line in cause.last_lines)
    assert consequence.consequence
    assert "no such pixel" in consequence.message
    assert "Traceback" in (tmp_path / "rank-1.log").read_text()


def test_a_killed_peer_ends_the_other_with_its_rank_in_the_message(start):
    workers = start(2, steps=ENDLESS)
    workers[0].hear(StepEvent)
    workers[1].process.kill()
    assert workers[0].end() == 1
    event = workers[0].failure()
    assert event.consequence
    assert "rank 1" in event.message


def test_a_worker_whose_agent_is_gone_leaves_nothing(start):
    (worker,) = start(steps=ENDLESS)
    worker.hear(StepEvent)
    worker.connection.shutdown(socket.SHUT_RDWR)
    assert worker.process.wait(60) == -signal.SIGKILL


def test_a_wrong_request_is_a_sentence_without_a_traceback(start, tmp_path):
    (worker,) = start(model={"name": "resnet5000"})
    assert worker.end() == 2
    assert worker.failure().kind == "request"
    assert "resnet5000" in worker.failure().message
    assert "Traceback" not in (tmp_path / "rank-0.log").read_text()


def test_without_an_agent_it_says_how_to_start_a_training():
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLRUN_")}
    ran = subprocess.run(
        [sys.executable, "-m", "mlrun.worker"], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "mlrun launch" in ran.stderr
