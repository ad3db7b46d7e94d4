"""Whoever finds a port of a run and knocks there changes nothing."""

from __future__ import annotations

import itertools
import random
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from .conftest import Mlrun, Run

HOSTILE = 1000
HELLO = struct.Struct(">8sQIIH32s")
GATE = """\
import os, pathlib, time
gate = pathlib.Path(os.environ["GATE"])
end = time.monotonic() + 60
while os.environ.get("MLRUN_LOCAL_RANK") == "0" and not gate.exists() and time.monotonic() < end:
    time.sleep(0.02)
"""
"""Holds rank 0 back before it listens, so that rank 1 can be stopped before it knows any plan."""


def hello() -> bytes:
    """What rank 1 would say to rank 0."""
    return HELLO.pack(b"mlrunL1\n", 0, 1, 0, 0, secrets.token_bytes(32))


def attack(number: int, address: tuple[str, int]) -> str:
    """One hostile connection; what became of it."""
    try:
        with socket.create_connection(address, timeout=5) as sock:
            sock.settimeout(2)
            kind = number % 4
            if kind == 0:
                sock.sendall(random.Random(number).randbytes(4096))
            elif kind == 1:
                sock.sendall(hello()[: number % HELLO.size])
            else:
                sock.sendall(hello())
                answer = sock.recv(64, socket.MSG_WAITALL)
                # A made-up proof, or the acceptor's own sent back to it.
                sock.sendall(secrets.token_bytes(32) if kind == 2 else answer[32:])
            return "admitted" if kind != 1 and sock.recv(1) == b"C" else "dropped"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "dropped"


def await_listener(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    pytest.fail(f"nobody listens on port {port}")


def worker(run: Run, local_rank: int) -> psutil.Process:
    for process in run.children():
        if process.environ().get("MLRUN_LOCAL_RANK") == str(local_rank):
            return process
    raise AssertionError(f"no worker with local rank {local_rank}")


def test_a_thousand_hostile_connections_change_nothing(
    mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path
) -> None:
    calm = mlrun("launch", spec(), "-np", "2")
    assert calm.finish() == 0

    first = random.randrange(20000, 30000, 20)
    site, gate = tmp_path / "site", tmp_path / "gate"
    site.mkdir()
    (site / "sitecustomize.py").write_text(GATE)
    env = {"PYTHONPATH": str(site), "GATE": str(gate)}
    run = mlrun("launch", spec(network={"ports": f"{first}-{first + 19}"}, env=env), "-np", "2")
    await_listener(first)
    late = worker(run, 1)
    late.suspend()
    gate.touch()
    address = ("127.0.0.1", first + 1)
    await_listener(address[1])
    # Rank 0 knows its neighbour's address by now, or will in a moment, and waits for it among strangers.
    silent = [socket.create_connection(address, timeout=5) for _ in range(100)]
    with ThreadPoolExecutor(16) as pool:
        outcomes = Counter(pool.map(attack, range(HOSTILE - len(silent)), itertools.repeat(address)))
    late.resume()

    assert run.finish() == 0
    for sock in silent:
        sock.close()
    assert outcomes == {"dropped": HOSTILE - len(silent)}
    assert run.summary["parameter_hash"] == calm.summary["parameter_hash"]
    assert not run.said("FailureEvent")
    assert any("strangers" in e["text"] or "dropped a connection" in e["text"] for e in run.said("LogEvent"))
