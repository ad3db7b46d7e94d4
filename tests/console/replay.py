"""Events of runs that never were, and a player to look at a view: ``python replay.py live --ranks 4``."""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from mlrun.console import KINDS, open_console
from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    FailureEvent,
    LinkEvent,
    LogEvent,
    StateEvent,
    StepEvent,
    SummaryEvent,
    TelemetryEvent,
)

START = 1_700_000_000.0
RUN_DIR = "runs/resnet-20231114-221320"


def training(ranks: int = 2, seconds: int = 20, fails_at: int | None = None) -> Iterator[Event]:
    """One event per rank and second, eight steps a second, an evaluation every five seconds.

    From second 12 on rank 1 runs hot and holds the others back; the last rank sends over Wi-Fi.
    """
    noise = random.Random(7)
    hosts = [f"mac-{rank + 1}" for rank in range(ranks)]
    total = 8 * seconds
    run = {"name": "resnet", "world_size": ranks, "unit": "images", "run_dir": RUN_DIR}
    yield StateEvent("starting", run, time=START)
    yield LogEvent(f"global batch 64 → {64 * ranks}, lr unchanged 0.1", time=START)
    for rank, host in enumerate(hosts):
        yield StateEvent("training", {"device": "mps"}, time=START + 1, rank=rank, host=host)
    for second in range(1, seconds + 1):
        now, step = START + 1 + second, 8 * second
        if second == fails_at:
            yield from _failure(ranks, hosts, step, now)
            return
        loss = 2.3 * math.exp(-3 * second / seconds) + 0.05 * noise.random()
        for rank, host in enumerate(hosts):
            hot = second >= 12 and rank == 1
            wait = 0.05 + 0.05 * noise.random() + 0.2 * (second >= 12 and not hot)
            split = {"data_s": 0.04, "compute_s": 0.96 - wait, "comm_s": wait}
            samples = 8 * 64 if second > 2 else 6 * 64
            counts = {
                "step": step,
                "steps_total": total,
                "epoch": second // 10,
                "steps": 8,
                "samples": samples,
            }
            told = loss if rank == 0 else None
            yield StepEvent(**counts, seconds=1.0, **split, lr=0.1, loss=told, time=now, rank=rank, host=host)
            gpu = 95 - 60 * wait + 3 * noise.random()
            yield TelemetryEvent(
                gpu_percent=gpu,
                gpu_memory_bytes=6_000_000_000 + 10_000_000 * rank,
                gpu_watts=0.4 * gpu,
                cpu_percent=12.0,
                thermal="heavy" if hot else "nominal",
                chip="Apple M2 Max",
                time=now,
                host=host,
            )
            if ranks > 1:
                last = rank == ranks - 1
                yield LinkEvent(
                    (rank + 1) % ranks,
                    "wifi" if last else "thunderbolt",
                    bytes_sent=840_000_000 * second,
                    bytes_received=840_000_000 * second,
                    send_blocked_s=0.0,
                    receive_blocked_s=wait * second,
                    bytes_per_s=1.1e9 if last else 2.4e9,
                    time=now,
                    rank=rank,
                    host=host,
                )
        if second % 5 == 0:
            metrics = {"loss": loss, "accuracy": 1 - 0.9 * math.exp(-3 * second / seconds)}
            yield EvaluationEvent(
                step, second // 10, metrics, 1000, 0.4, best=True, time=now, rank=0, host=hosts[0]
            )
            yield CheckpointEvent(
                step, f"{RUN_DIR}/checkpoints/step-{step}", 102_000_000, 0.3, time=now, rank=0
            )
        if second % 7 == 0:
            yield LogEvent("wrote\x1b[2K 3 records", time=now, rank=0, host=hosts[0], source="stdout")
        if second == 12:
            yield LogEvent("mac-2 runs hot: thermal state serious", level="warning", time=now, host="mac-2")
    yield SummaryEvent(_summary(ranks, hosts, total), time=START + 2 + seconds)


def _failure(ranks: int, hosts: list[str], step: int, now: float) -> Iterator[Event]:
    victim = ranks - 1
    lines = ["Traceback (most recent call last):", '  File "train.py", line 12', "MemoryError"]
    yield FailureEvent("signal", "killed by SIGKILL", step, lines, time=now, rank=victim, host=hosts[victim])
    for rank in range(victim):
        message = f"rank {victim} ({hosts[victim]}) closed its link"
        yield FailureEvent(
            "exception", message, step, consequence=True, time=now, rank=rank, host=hosts[rank]
        )
    yield SummaryEvent({"status": "failed", "exit_code": 1, "run_dir": RUN_DIR, "ranks": []}, time=now + 1)


def _summary(ranks: int, hosts: list[str], steps: int) -> dict[str, object]:
    return {
        "status": "done",
        "exit_code": 0,
        "world_size": ranks,
        "samples_per_second": 512.0 * ranks,
        "ranks": [{"rank": r, "host": h, "samples_per_second": 512.0} for r, h in enumerate(hosts)],
        "loss": 0.1144,
        "metrics": {"accuracy": 0.9552},
        "parameter_hash": "3f2a9c0d1e4b5a69788796a5b4c3d2e1",
        "hashes_agree": True,
        "steps": steps,
        "run_dir": RUN_DIR,
        "checkpoint": f"{RUN_DIR}/checkpoints/step-{steps}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--fails-at", type=int)
    asked = parser.parse_args()
    began = time.time()
    with open_console(asked.kind) as console:
        for event in training(asked.ranks, asked.seconds, asked.fails_at):
            # Real hosts don't all tell in the same instant.
            place = int(event.host.rpartition("-")[2]) - 1 if event.host is not None else 0
            at = began + event.time - START + 0.9 * place / asked.ranks
            time.sleep(max(0.0, at - time.time()))
            console.show(replace(event, time=at))


if __name__ == "__main__":
    main()
