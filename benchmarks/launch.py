"""What a launch costs before the first step: ``python -m benchmarks.launch [HOSTS] [--sim]``.

In a room of HOSTS hosts with an sshd each (see ``tests/cluster``: needs Linux and root), a launch over ssh up
to the moment at which every rank trains, beside as many bare processes here that import torch and build the
same model and data. ``--sim``: simulated workers, which need no framework; the bare processes build those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT

ROUNDS = 3
DEADLINE_S = 400.0
JOB = {"name": "launch", "batch_size": 16, "steps": 2, "threads": 1, "device": "cpu", "log_every": 1}
TORCH = {**JOB, "model": {"name": "resnet8"}, "data": {"source": "digits"}, "steps": 300, "log_every": 50}
SIM = {
    **JOB,
    "framework": "sim",
    "model": {"name": "resnet18"},
    "steps": 5,
    "sim": {"samples_per_second": 100},
}
BARE = """
import json, os, sys
from mlrun.backends import registry
from mlrun.spec import JobSpec
spec = JobSpec.model_validate(json.loads(sys.argv[1]))
registry.create(spec.framework).build(spec, None, 0)
os._exit(0)
"""


@dataclass
class Launch:
    """One launch. ``reached``: seconds from its start to when all that belong to a stage had come to it."""

    reached: dict[str, float] = field(default_factory=dict)
    launcher_mb: float = 0.0
    agent_mb: float = 0.0
    agent_cores: float = 0.0

    @property
    def training(self) -> float:
        return self.reached["every rank trains"]


def bare(job: dict[str, Any], count: int) -> float:
    """Seconds until ``count`` processes have built what a worker builds, without mlrun's launching."""
    command = [sys.executable, "-c", BARE, json.dumps(job)]
    start = time.monotonic()
    processes = [subprocess.Popen(command, cwd=CHECKOUT, env=_one_thread()) for _ in range(count)]
    if any(process.wait(DEADLINE_S) for process in processes):
        raise SystemExit("a bare process failed")
    return time.monotonic() - start


def launch(cluster: Cluster, job: dict[str, Any]) -> Launch:
    work = cluster.root / "work"
    work.mkdir(exist_ok=True)
    (work / "job.yaml").write_text(yaml.safe_dump(job))
    environment = {**cluster.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    hosts = ",".join(cluster.hosts)
    argv = [sys.executable, "-m", "mlrun.cli", "launch", "job.yaml", "-H", hosts, "--console", "json"]
    began = time.time()
    process = cluster.launcher.popen(argv, cwd=work, env=environment, stdout=subprocess.PIPE)
    took = Launch()
    agents: list[tuple[float, float, float]] = []
    for event in _events(process):
        _note(took.reached, event, len(cluster.hosts), began)
        if event["type"] == "StepEvent" and event["rank"] == 0:
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):  # the end has come
                agents.append(_agents(cluster))
            took.launcher_mb = _peak_mb(process.pid)
    if process.wait(DEADLINE_S) != 0:
        raise SystemExit("the launch failed")
    (began_at, began_with, _), (ended_at, ended_with, took.agent_mb) = agents[0], agents[-1]
    if ended_at > began_at:
        took.agent_cores = (ended_with - began_with) / len(cluster.hosts) / (ended_at - began_at)
    return took


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def _note(reached: dict[str, float], event: dict[str, Any], ranks: int, began: float) -> None:
    """The time of the last rank's event of each kind, which all share one machine's clock."""
    if event["type"] != "StateEvent":
        return
    names = {
        "starting": "every worker's Python runs mlrun",
        "connecting": "every framework is imported",
        "training": "every rank trains",
    }
    at = event["time"] - began
    if event["rank"] is None and event["state"] == "starting":
        reached["the launcher is up"] = at
    elif event["state"] in names and (event["state"] != "training" or "parameters" in event["detail"]):
        reached.setdefault("the first worker runs (ssh, agreement, code, links)", at)
        reached[names[event["state"]]] = at


def _agents(cluster: Cluster) -> tuple[float, float, float]:
    """The time, and of all agents the seconds of CPU so far and the most memory of one in MB."""
    agents = [p for host in cluster.hosts.values() for p in host.processes() if "mlrun.agent" in p.cmdline()]
    return time.monotonic(), sum(sum(p.cpu_times()[:2]) for p in agents), max(_peak_mb(p.pid) for p in agents)


def _peak_mb(pid: int) -> float:
    words = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()
    return int(words[0]) / 1024


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}


def _settle(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("something of the last launch is left")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", type=int, nargs="?", default=4)
    parser.add_argument("--sim", action="store_true", help="simulated workers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    job = SIM if asked.sim else TORCH
    print(f"{asked.hosts} hosts, load {os.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with Cluster(asked.hosts) as cluster:
        for host in cluster.hosts.values():
            host.install()
        launch(cluster, job)  # the first one sends the code
        for _ in range(asked.rounds):
            alone = bare(job, asked.hosts)
            took = launch(cluster, job)
            _settle(lambda: not cluster.leftovers())
            print(
                f"every rank trains after {took.training:.2f} s; bare processes take {alone:.2f} s: "
                f"{took.training - alone:+.2f} s, {took.training / alone:.2f} times",
                flush=True,
            )
        last = 0.0
        for stage, at in sorted(took.reached.items(), key=lambda reached: reached[1]):
            print(f"  {at:7.2f} s  {at - last:+6.2f}  {stage}")
            last = at
        print(
            f"launcher {took.launcher_mb:.0f} MB; largest agent {took.agent_mb:.0f} MB, "
            f"an agent takes {took.agent_cores:.1%} of a core while training"
        )


if __name__ == "__main__":
    main()
