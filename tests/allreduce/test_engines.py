"""Each engine behind the Communicator does the same, in real processes."""

from __future__ import annotations

import importlib.util
import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from mlrun.allreduce import engines
from mlrun.allreduce.links import Listener
from mlrun.errors import RequestError
from mlrun.protocol import Plan

RANK_MAIN = Path(__file__).with_name("rank_main.py")


def needs(engine: str, *modules: str) -> object:
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return pytest.param(engine, marks=pytest.mark.skipif(bool(missing), reason=f"no {' or '.join(missing)}"))


ENGINES = [needs("ring", "mlrun.allreduce.ring"), needs("gloo", "torch"), needs("mpi", "mpi4py")]


def play(engine: str, size: int, scenario: str, settings: dict[str, object] | None = None) -> list[list[str]]:
    """How each rank ended: ["ok", ""], [error's class, message], or ["exit", code and stderr]."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK_MAIN), engine, str(rank), str(size), scenario],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        endpoints = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
        plan = json.dumps([endpoints, secrets.token_hex(32), settings or {}]) + "\n"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(plan)
            rank.stdin.flush()
        ends = []
        for rank in ranks:
            out, err = rank.communicate(timeout=90)
            ends.append(json.loads(out) if out.strip() else ["exit", f"{rank.returncode}: {err}"])
        return ends
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_engine_keeps_the_contract(engine: str, size: int) -> None:
    assert play(engine, size, "contract") == [["ok", ""]] * size


@pytest.mark.parametrize("engine", ENGINES)
def test_abort_frees_all_with_its_reason(engine: str) -> None:
    for kind, text in play(engine, 4, "aborted"):
        assert kind == "AbortedError"
        assert "out of patience" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dead_peer_is_told_by_all_others(engine: str) -> None:
    *others, dead = play(engine, 4, "killed")
    assert dead[0] == "exit"
    for kind, text in others:
        assert kind in ("PeerLostError", "AbortedError")
        assert "rank 3 (here)" in text


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_wire_dtype_needs_the_ring(engine: str) -> None:
    for kind, text in play(engine, 2, "contract", {"wire_dtype": "bf16"}):
        assert kind == "RequestError"
        assert "engine: ring" in text


def test_an_unknown_engine_is_a_wrong_request() -> None:
    with Listener(["127.0.0.1"]) as listener:
        plan = Plan(0, "carrier-pigeon", [listener.endpoints], ["here"])
        with pytest.raises(RequestError, match="carrier-pigeon"):
            engines.connect(plan, 0, listener, secrets.token_hex(32))
