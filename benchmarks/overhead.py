"""What mlrun costs: its images/s over those of the same loop written by hand.

One worker is compared with a bare PyTorch loop, two with torchrun, DistributedDataParallel and gloo: same
model, batch, threads and data in memory. The two sides take turns, because the machine's own speed drifts;
each pair of neighbours gives one ratio. mlrun's speed is read from the times of its events, so that it holds
all that happens between two steps.
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

from mlrun.protocol import StepEvent
from mlrun.wire import decode

HERE = Path(__file__).parent
WARM_UP, LOG_EVERY = 10, 10
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
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
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs for each comparison, 2 or more")
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
    """False where the ratio is below ``wanted`` beyond doubt: its whole 95 % interval is."""
    logs: list[float] = []
    for pair in range(pairs):
        if pair % 2:
            theirs_now, ours_now = theirs(), ours()
        else:
            ours_now, theirs_now = ours(), theirs()
        logs.append(math.log(ours_now / theirs_now))
        print(f"  {ours_now:.2f} / {theirs_now:.2f} images/s = {math.exp(logs[-1]):.3f}", flush=True)
    mean = statistics.fmean(logs)
    half = T_95.get(pairs - 1, 2.0) * statistics.stdev(logs) / math.sqrt(pairs)
    ratio, low, high = (math.exp(value) for value in (mean, mean - half, mean + half))
    verdict = "reached" if ratio >= wanted else "missed" if high < wanted else "not told apart"
    print(f"{name}: {ratio:.3f} (95 %: {low:.3f} to {high:.3f}), wanted {wanted}: {verdict}", flush=True)
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
    steps = [event for event in map(decode, out.splitlines()) if isinstance(event, StepEvent)]
    events = [event for event in steps if event.rank == 0]
    first = next(event for event in events if event.step >= WARM_UP)
    last = events[-1]
    return workers * load.batch_size * (last.step - first.step) / (last.time - first.time)


def by_hand(load: Load, workers: int, threads: int) -> float:
    settings = {
        "model": load.model,
        "image-size": load.image_size,
        "classes": load.classes,
        "batch-size": load.batch_size,
        "steps": load.steps,
        "warm-up": WARM_UP,
        "log-every": LOG_EVERY,
        "threads": threads,
    }
    program = [str(HERE / "bare_loop.py"), *(f"--{name}={value}" for name, value in settings.items())]
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
