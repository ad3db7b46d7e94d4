"""The processes of one engine under test, up for the whole benchmark."""

from __future__ import annotations

import json
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlrun.allreduce import mpirun
from mlrun.errors import RunFailedError

START_TIMEOUT_S = 120.0
ROUND_TIMEOUT_S = 300.0

_OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "127.0.0.0/8"]


@dataclass(frozen=True, slots=True)
class Round:
    """One engine's turn: seconds per all-reduce on the slowest rank; elements that were wrong on any rank."""

    seconds: float
    wrong: int | None


class Group:
    """``size`` ranks of ``engine``, joined and waiting; ``settings`` as in the spec's allreduce block.

    Raises:
        RunFailedError: they didn't start; the message has the engine's own words.
    """

    def __init__(self, engine: str, size: int, settings: dict[str, Any]) -> None:
        self.engine, self.size = engine, size
        self._folder = tempfile.TemporaryDirectory(prefix="mlrun-bench-")
        self._log = Path(self._folder.name, "log")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ranks: list[socket.socket] = []
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                path = str(Path(self._folder.name, "s"))
                listening.bind(path)
                listening.listen(size)
                with self._log.open("wb") as log:
                    for command in _commands(engine, size, path):
                        self._processes.append(
                            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                        )
                self._join(listening, settings)
        except BaseException:
            self.close()
            raise

    def measure(self, count: int, dtype: str, iterations: int) -> Round:
        """One round on all ranks at once.

        Raises:
            RunFailedError: a rank failed or has ended.
        """
        self._send({"count": count, "dtype": dtype, "iterations": iterations})
        answers = self._receive(ROUND_TIMEOUT_S)
        wrong = [answer["wrong"] for answer in answers]
        return Round(max(each["seconds"] for each in answers), None if None in wrong else sum(wrong))

    def close(self) -> None:
        """End all ranks. Idempotent."""
        for rank in self._ranks:
            rank.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _join(self, listening: socket.socket, settings: dict[str, Any]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._ranks) < self.size:
            if select.select([listening], [], [], 0.2)[0]:
                self._ranks.append(listening.accept()[0])
            elif time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                raise self._failure("didn't start")
        hellos = self._receive(START_TIMEOUT_S)
        in_order = sorted(range(self.size), key=lambda i: hellos[i]["rank"])
        endpoints = [hellos[i]["endpoints"] for i in in_order]
        self._send([endpoints, secrets.token_hex(32), settings])
        self._receive(START_TIMEOUT_S)

    def _send(self, message: object) -> None:
        for rank in self._ranks:
            try:
                rank.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                raise self._failure("has ended") from None

    def _receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """One line of every rank."""
        answers = []
        for rank in self._ranks:
            rank.settimeout(timeout_s)
            line = b""
            try:
                while not line.endswith(b"\n"):
                    part = rank.recv(65536)
                    if not part:
                        raise self._failure("has ended")
                    line += part
            except OSError:
                raise self._failure(f"said nothing for {timeout_s:g} s") from None
            answer = json.loads(line)
            if "error" in answer:
                raise self._failure(answer["error"])
            answers.append(answer)
        return answers

    def _failure(self, what: str) -> RunFailedError:
        said = self._log.read_text(errors="replace").strip().splitlines()[-8:]
        return RunFailedError("\n  ".join([f"engine {self.engine} with {self.size} ranks: {what}", *said]))


def _commands(engine: str, size: int, path: str) -> list[list[str]]:
    rank = ["-m", "mlrun.bench.rank", engine, path]
    if engine.startswith("mpi"):
        transport = _OVER_TCP if engine == "mpi" else []
        # mpi4py's runner ends the whole job when one rank raises.
        return [[*mpirun.command(size), *transport, sys.executable, "-m", "mpi4py", *rank]]
    return [[sys.executable, *rank, str(each)] for each in range(size)]
