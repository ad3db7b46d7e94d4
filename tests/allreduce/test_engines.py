"""Each engine behind the Communicator does the same, in real processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from mlrun.allreduce import engines, mpirun
from mlrun.allreduce.links import Listener
from mlrun.errors import RequestError
from mlrun.protocol import Plan

RANK_MAIN = Path(__file__).with_name("rank_main.py")
ROOT = RANK_MAIN.parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def needs(engine: str, *modules: str) -> object:
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return pytest.param(engine, marks=pytest.mark.skipif(bool(missing), reason=f"no {' or '.join(missing)}"))


ENGINES = [needs("ring", "mlrun.allreduce.ring"), needs("gloo", "torch"), needs("mpi", "mpi4py")]

HOROVOD = needs("horovod", "horovod")


def commands(engine: str, size: int, scenario: str, port: int) -> list[list[str]]:
    rank = [str(RANK_MAIN), engine, scenario, str(port)]
    if engine == "mpi":
        return [[*mpirun.command(size), sys.executable, "-m", "mpi4py", *rank]]
    return [[sys.executable, *rank, str(each)] for each in range(size)]


def play(engine: str, size: int, scenario: str, settings: dict[str, object] | None = None) -> list[list[Any]]:
    """How each rank ended: ["ok", what it returned], [error's class, message], or ["exit", ""]."""
    with contextlib.ExitStack() as ending:
        listening = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.settimeout(90)
        for command in commands(engine, size, scenario, listening.getsockname()[1]):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, env=ENVIRONMENT)
            ending.callback(process.wait)
            ending.callback(process.terminate)
        ranks = {}
        for _ in range(size):
            sock = ending.enter_context(listening.accept()[0])
            sock.settimeout(90)
            lines = ending.enter_context(sock.makefile("rw"))
            rank, endpoints = json.loads(lines.readline())
            ranks[rank] = lines, endpoints
        plan = json.dumps([[ranks[r][1] for r in range(size)], secrets.token_hex(32), settings or {}])
        for lines, _ in ranks.values():
            print(plan, file=lines, flush=True)
        return [ended(ranks[r][0]) for r in range(size)]


def ended(lines: IO[str]) -> list[Any]:
    try:
        line = lines.readline()
    except ConnectionResetError:
        line = ""
    return json.loads(line) if line else ["exit", ""]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_engine_keeps_the_contract(engine: str, size: int) -> None:
    assert play(engine, size, "contract") == [["ok", ""]] * size


@pytest.mark.parametrize("engine", [HOROVOD])
@pytest.mark.parametrize("size", [2, 3])
def test_horovod_keeps_its_part_of_the_contract(engine: str, size: int) -> None:
    assert play(engine, size, "contract_of_horovod") == [["ok", ""]] * size


@pytest.mark.parametrize("engine", [HOROVOD])
def test_horovod_tells_of_a_dead_peer(engine: str) -> None:
    *others, dead = play(engine, 3, "killed_in_a_reduction")
    assert dead[0] == "exit"
    for kind, text in others:
        assert kind in ("PeerLostError", "AbortedError")
        assert "has gone" in text


@pytest.mark.skipif(importlib.util.find_spec("horovod") is not None, reason="Horovod is installed")
def test_an_engine_that_isnt_installed_names_its_recipe() -> None:
    for kind, text in play("horovod", 2, "contract"):
        assert kind == "RequestError"
        assert "docs/engines.md" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_abort_frees_all_with_its_reason(engine: str) -> None:
    for kind, text in play(engine, 4, "aborted"):
        assert kind == "AbortedError"
        assert "out of patience" in text


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_dead_peer_is_told_by_all_others(engine: str) -> None:
    *others, dead = play(engine, 4, "killed")
    assert dead[0] == "exit"
    for kind, text in others:
        assert kind in ("PeerLostError", "AbortedError")
        assert "rank 3 (here)" in text


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py")
def test_mpirun_ends_all_when_a_rank_dies() -> None:
    assert play("mpi", 3, "killed")[2] == ["exit", ""]


@pytest.mark.parametrize("engine", [*ENGINES[1:], HOROVOD])
def test_a_wire_dtype_needs_the_ring(engine: str) -> None:
    for kind, text in play(engine, 2, "contract", {"wire_dtype": "bf16"}):
        assert kind == "RequestError"
        assert "engine: ring" in text


def test_an_unknown_engine_is_a_wrong_request() -> None:
    with Listener(["127.0.0.1"]) as listener:
        plan = Plan(0, "carrier-pigeon", [listener.endpoints], ["here"])
        with pytest.raises(RequestError, match="carrier-pigeon"):
            engines.connect(plan, 0, listener, secrets.token_hex(32))
