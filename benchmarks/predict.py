"""How well scale-test predicts: ``benchmarks/predict.py [--seed N]`` prints the table of docs/scale-test.md.

Workers are measured alone first: a simulated one at one batch size, and a real torch one on one thread. Then
combinations of workers, batch, link, wire type, overlap and one slow worker, drawn by a fresh seed, are
predicted from that and measured. Needs two idle cores and about three minutes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlrun.errors import ExitCode
from mlrun.scaletest.command import setting_of
from mlrun.scaletest.measure import Point, measure
from mlrun.scaletest.model import Setting, predict
from mlrun.scaletest.plan import Case, cases
from mlrun.spec import JobSpec

SIMULATED = 12
BATCH = 16
COLUMNS = [
    "framework",
    "workers",
    "batch",
    "Mbit/s",
    "wire",
    "overlap",
    "slow",
    "predicted",
    "measured",
    "error",
]
SPEED = 32.0
TORCH: dict[str, Any] = {
    "name": "torch",
    "model": {"name": "resnet8", "args": {"width": 64}},
    "data": {"source": "digits"},
    "batch_size": 32,
    "steps": 60,
    "threads": 1,
}


def sim(rng: random.Random) -> tuple[dict[str, Any], int, int | None, dict[str, Any]]:
    """A combination: allreduce, batch, slow rank (or None) and how the table shows it."""
    workers = rng.choice([2, 3, 4])
    slow = rng.choice([None, None, rng.randrange(workers)])
    shown = {
        "workers": workers,
        "batch": rng.choice([8, 16, 24]),
        "Mbit/s": rng.choice([400, 600, 900]),
        "wire": rng.choice(["fp32", "bf16", "fp16"]),
        "overlap": rng.choice([True, False]),
        "slow": "-" if slow is None else f"rank {slow}, 1.5×",
    }
    return allreduce_of(shown), shown["batch"], slow, shown


def allreduce_of(shown: dict[str, Any]) -> dict[str, Any]:
    wire = None if shown["wire"] == "fp32" else shown["wire"]
    return {"pace_mbit_s": shown["Mbit/s"], "wire_dtype": wire, "overlap": shown["overlap"]}


def spec_of(keys: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate(keys)


def run(spec: JobSpec, workers: int, folder: Path) -> Point:
    (case,) = cases([spec], [workers], [], "batch")
    point, exit_code = measure(Case(case.series, case.spec, workers), 1, folder, lambda: None)
    if point is None or exit_code is not ExitCode.DONE:
        raise SystemExit(f"{spec.name} with {workers} workers failed: its logs were in {folder}")
    return point


def row(framework: str, shown: dict[str, Any], setting: Setting, point: Point) -> float:
    """Print a row; the error of the prediction, in per cent of the measured step."""
    foretold = predict(setting).step_s
    measured = point.global_batch / point.speed
    error = 100 * (foretold / measured - 1)
    cells = [
        framework,
        *map(str, shown.values()),
        f"{foretold:.3f} s",
        f"{measured:.3f} s",
        f"{error:+.1f} %",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    return abs(error)


def main(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as name:
        errors = [*simulated(rng, Path(name)), real(rng, Path(name))]
    print(f"\nthe largest error is {max(errors):.1f} %, of {len(errors)}")


def simulated(rng: random.Random, folder: Path) -> list[float]:
    keys = {"name": "sim", "framework": "sim", "model": {"name": "resnet50"}, "steps": 7}
    alone = run(spec_of({**keys, "sim": {"samples_per_second": SPEED}, "batch_size": BATCH}), 1, folder)
    errors = []
    for _ in range(SIMULATED):
        allreduce, batch, slow, shown = sim(rng)
        workers = shown["workers"]
        slower = [1.5 if rank == slow else 1.0 for rank in range(workers)]
        speeds = {"samples_per_second": [SPEED / each for each in slower]}
        spec = spec_of({**keys, "sim": speeds, "batch_size": batch, "allreduce": allreduce})
        own = alone.compute_s * batch / BATCH
        setting = replace(
            setting_of(spec, alone, [], workers), compute_s=tuple(own * each for each in slower)
        )
        errors.append(row("sim", shown, setting, run(spec, workers, folder)))
    return errors


def real(rng: random.Random, folder: Path) -> float:
    """Torch with two workers on two cores, one each."""
    shown = {"workers": 2, "batch": 32, "Mbit/s": rng.choice([100, 200, 300]), "wire": "fp32"}
    shown |= {"overlap": rng.choice([True, False]), "slow": "-"}
    alone = run(spec_of(TORCH), 1, folder)
    spec = spec_of({**TORCH, "allreduce": allreduce_of(shown)})
    return row("torch", shown, setting_of(spec, alone, [], 2), run(spec, 2, folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="repeat an earlier drawing")
    main(parser.parse_args().seed)
