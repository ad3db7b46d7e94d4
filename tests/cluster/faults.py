"""Random faults in a run over ssh: nothing may survive, and the cause must be named.

``python -m tests.cluster.faults 100 [SEED]`` prints a table and exits with 1 if any fault wasn't handled. For
each fault a training starts on two hosts; in the middle of it something is killed, stopped or unplugged.
A run that lost nothing but a connection has to go on over another one, until it is told to stop.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mlrun.launch.launcher import launch
from mlrun.specfile import load
from tests.cluster.cluster import OFFICE, Cluster
from tests.cluster.node import CHECKOUT, Node

LEASE_S = 5.0
ALLOWED_S = LEASE_S + 10
START_S = 180.0
STOPPED = 143
"""The exit code of a run that was told to stop."""
HOSTS = 2
SETTINGS = (
    "epochs=null",
    "steps=1000000",
    "threads=1",
    "device=cpu",
    "evaluate=null",
    "allreduce.heartbeat_s=3",
    "allreduce.progress_timeout_s=5",
)


@dataclass(frozen=True)
class Fault:
    """What happens to what; ``host`` is where, None on the launcher itself."""

    what: str
    victim: str
    host: str | None

    def __str__(self) -> str:
        return f"{self.what} {self.victim}{f' of {self.host}' if self.host else ''}"


@dataclass(frozen=True)
class Outcome:
    """``exit_code`` is None where the launcher was the victim; ``gone_s`` where something survived."""

    fault: Fault
    gone_s: float | None
    exit_code: int | None
    cause: dict[str, Any] | None
    problems: list[str]

    def row(self) -> str:
        gone = "never" if self.gone_s is None else f"{self.gone_s:.1f} s"
        cause = (self.cause or {}).get("message", "-").splitlines()[0]
        verdict = "; ".join(self.problems) or "ok"
        return f"{self.fault!s:<28} {gone:>7}  exit {self.exit_code!s:<5} {verdict}: {cause}"


def all_faults() -> list[Fault]:
    hosts = [f"mac{i + 1}" for i in range(HOSTS)]
    return [
        *(
            Fault(what, victim, host)
            for what in ("KILL", "STOP")
            for victim in ("worker", "agent", "ssh")
            for host in hosts
        ),
        *(Fault("DOWN", "interface", host) for host in hosts),
        Fault("KILL", "launcher", None),
        Fault("STOP", "launcher", None),
    ]


def choose(count: int, seed: int) -> list[Fault]:
    """``count`` faults in random order, every kind as often as any other."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        faults += chance.sample(all_faults(), len(all_faults()))
    return faults[:count]


def suffer(cluster: Cluster, fault: Fault) -> Outcome:
    """Start a run, let ``fault`` happen, and see what becomes of it."""
    work = cluster.root / "work"
    work.mkdir(exist_ok=True)
    with _training(cluster, work) as launcher:
        _await_steps(launcher, work)
        began = time.monotonic()
        _happen(cluster, fault, launcher)
        went_on = (
            fault.victim != "ssh" or _until(lambda: _is_back(work), began + ALLOWED_S, began) is not None
        )
        if fault.victim == "ssh":
            launcher.send_signal(signal.SIGTERM)
            began = time.monotonic()
        try:
            gone_s = _until(lambda: not cluster.leftovers(), began + ALLOWED_S + 15, began)
            left = cluster.leftovers()
            if fault.victim == "launcher":
                launcher.kill()
            exit_code = launcher.wait(60)
        finally:
            if fault.victim == "interface":
                cluster.hosts[fault.host or ""].set_interface("en0", up=True)
    summary = _summary(work)
    cause = summary.get("failure") if summary else None
    problems = [] if gone_s is not None and gone_s <= ALLOWED_S else [f"left: {left}"]
    if fault.victim == "launcher":
        return Outcome(fault, gone_s, None, None, problems)
    if fault.victim == "ssh":
        problems += [] if went_on and exit_code == STOPPED else [f"exit code {exit_code}, went on: {went_on}"]
        return Outcome(fault, gone_s, exit_code, cause, problems)
    if exit_code != 1:
        problems.append(f"exit code {exit_code}")
    if _blamed(cause) != fault.host:
        problems.append(f"blamed {_blamed(cause)}")
    return Outcome(fault, gone_s, exit_code, cause, problems)


def _is_back(work: Path) -> bool:
    """Whether a connection was taken up again and a step was told of since."""
    _, back, since = (work / "output").read_text().partition("the connection had broken and is back")
    return bool(back) and re.search(r"step \d+/", since) is not None


def _blamed(cause: dict[str, Any] | None) -> str | None:
    """The host that is named as the cause: by the one who waited for it, or by the launcher."""
    if cause is None:
        return None
    waited_for = re.search(r"(?:from|to|for) rank \d+ \((\w+)\)", cause["message"])
    return waited_for[1] if waited_for else cause["host"]


@contextmanager
def _training(cluster: Cluster, work: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.cluster.faults", "--train", str(work), ",".join(cluster.hosts)]
    environment = {**cluster.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    with (work / "output").open("w") as output:
        launcher = cluster.launcher.popen(argv, cwd=work, env=environment, stdout=output, stderr=output)
    try:
        yield launcher
    finally:
        for node in (cluster.launcher, *cluster.hosts.values()):
            for process in _processes(node, "mlrun", "tests.cluster.faults", "ssh"):
                process.kill()
        launcher.wait()


def _await_steps(launcher: subprocess.Popen[str], work: Path) -> None:
    deadline = time.monotonic() + START_S
    while "step 1/" not in (work / "output").read_text():
        if launcher.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run didn't start:\n{(work / 'output').read_text()}")
        time.sleep(0.1)


def _happen(cluster: Cluster, fault: Fault, launcher: subprocess.Popen[str]) -> None:
    if fault.victim == "interface":
        cluster.hosts[fault.host or ""].set_interface("en0", up=False)
        return
    number = signal.SIGKILL if fault.what == "KILL" else signal.SIGSTOP
    if fault.victim == "launcher":
        launcher.send_signal(number)
        return
    if fault.victim == "ssh":
        victims = _processes(cluster.launcher, f"-- {fault.host}")
    else:
        victims = _processes(cluster.hosts[fault.host or ""], f"-m mlrun.{fault.victim}")
    victims[0].send_signal(number)


def _processes(node: Node, *words: str) -> list[psutil.Process]:
    found = []
    for process in node.processes():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if any(word in line for word in words):
            found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _until(condition: Callable[[], bool], deadline: float, began: float) -> float | None:
    while not condition():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


def _summary(work: Path) -> dict[str, Any] | None:
    newest = max((work / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns) / "summary.json"
    return json.loads(newest.read_text()) if newest.is_file() else None


def train(work: Path, hosts: list[str]) -> int:
    """The launcher of these runs: as from the command line, but with a short lease."""
    listed = [f"hosts=[{','.join(hosts)}]", f"workdir={work}", *SETTINGS]
    spec = load(CHECKOUT / "configs" / "digits.yaml", listed)
    return launch(spec, console="plain", runs_dir=work / "runs", lease_s=LEASE_S).exit_code


def main(count: int, seed: int) -> int:
    print(f"{count} faults, seed {seed}, lease {LEASE_S:g} s, allowed {ALLOWED_S:g} s")
    failed = 0
    with Cluster(HOSTS, [OFFICE]) as cluster:
        for host in cluster.hosts.values():
            host.install()
        for fault in choose(count, seed):
            outcome = suffer(cluster, fault)
            failed += bool(outcome.problems)
            print(outcome.row(), flush=True)
    print(f"{count - failed} of {count} handled")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        sys.exit(train(Path(sys.argv[2]), sys.argv[3].split(",")))
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 16)
    sys.exit(main(int(sys.argv[1]), seed))
