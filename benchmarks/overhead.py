"""What mlrun costs: its images/s over those of the same loop written by hand.

One worker is compared with a bare PyTorch loop, two with torchrun, DistributedDataParallel and gloo: same model,
batch, threads and data in memory. The two sides take turns, because the machine's own speed drifts; each pair of
neighbours gives one ratio. mlrun's speed is read from the times of its events, so that it holds all that happens
between two steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from mlrun.protocol import StepEvent, decode

HERE = Path(__file__).parent
WARM_UP, LOG_EVERY = 10, 10
T_95 = [math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26]
"""Student's t for a 95 % interval, by degrees of freedom; 2 from there on."""


@dataclass(frozen=True)
class Load:
    model: str = "resnet18"
    image_size: int = 64
    classes: int = 100
    batch_size: int = 16
    steps: int = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs for each comparison")
    parser.add_argument("--steps", type=int, default=Load.steps, help="steps of a run")
    asked = parser.parse_args()
    load = Load(steps=asked.steps)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    alone, halved = cores, max(1, cores // 2)
    print(
        f"{load.model}, {load.image_size} pixels, batch {load.batch_size} per worker, {cores} cores",
        flush=True,
    )
    enough = [
        compare(
            "mlrun -np 1 / bare loop",
            lambda: with_mlrun(load, 1, alone),
            lambda: by_hand(load, 1, alone),
            asked.pairs,
            wanted=0.99,
        ),
        compare(
            "mlrun -np 2 / torchrun + DDP + gloo",
            lambda: with_mlrun(load, 2, halved),
            lambda: by_hand(load, 2, halved),
            asked.pairs,
            wanted=1.0,
        ),
    ]
    return 0 if all(enough) else 4


def compare(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], pairs: int, wanted: float
) -> bool:
    """True where the geometric mean of the ratios reaches ``wanted``, or its 95 % interval holds it."""
    logs: list[float] = []
    for pair in range(pairs):
        if pair % 2:
            theirs_now, ours_now = theirs(), ours()
        else:
            ours_now, theirs_now = ours(), theirs()
        logs.append(math.log(ours_now / theirs_now))
        print(f"  {name}: {ours_now:.2f} / {theirs_now:.2f} images/s = {math.exp(logs[-1]):.3f}", flush=True)
    mean = statistics.fmean(logs)
    half = math.inf
    if pairs > 1:
        t = T_95[pairs - 1] if pairs - 1 < len(T_95) else 2.0
        half = t * statistics.stdev(logs) / math.sqrt(pairs)
    low, high = math.exp(mean - half), math.exp(mean + half)
    verdict = (
        "reached" if math.exp(mean) >= wanted else "not told apart from it" if high >= wanted else "MISSED"
    )
    print(
        f"{name}: {math.exp(mean):.3f} (95 %: {low:.3f} to {high:.3f}), wanted {wanted}: {verdict}\n",
        flush=True,
    )
    return high >= wanted


def with_mlrun(load: Load, workers: int, threads: int) -> float:
    spec = {
        "name": "overhead",
        "model": {"name": load.model},
        "data": {
            "source": "synthetic",
            "samples": load.batch_size * workers * load.steps,
            "image_size": load.image_size,
            "classes": load.classes,
            "workers": 0,
        },
        "batch_size": load.batch_size,
        "steps": load.steps,
        "threads": threads,
        "device": "cpu",
        "log_every": LOG_EVERY,
        "optimizer": {"lr": 0.01, "momentum": 0.9},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "overhead.yaml")
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        command = [sys.executable, "-m", "mlrun.cli", "launch", str(path), "-np", str(workers)]
        out = run([*command, "--console", "json", "--runs-dir", folder])
    events = [
        event for event in map(decode, out.splitlines()) if isinstance(event, StepEvent) and event.rank == 0
    ]
    first = next(event for event in events if event.step >= WARM_UP)
    last = events[-1]
    return workers * load.batch_size * (last.step - first.step) / (last.time - first.time)


def by_hand(load: Load, workers: int, threads: int) -> float:
    program = [str(HERE / "bare_loop.py"), "--model", load.model, "--batch-size", str(load.batch_size)]
    program += ["--steps", str(load.steps), "--warm-up", str(WARM_UP), "--log-every", str(LOG_EVERY)]
    program += [
        "--image-size",
        str(load.image_size),
        "--classes",
        str(load.classes),
        "--threads",
        str(threads),
    ]
    starter = [sys.executable]
    if workers > 1:
        starter += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    out = run([*starter, *program])
    return float(json.loads(out.splitlines()[-1])["images_per_second"])


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
