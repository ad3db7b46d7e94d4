"""scale-test's predictions over ssh and shaped links: ``python -m tests.cluster.predictions [SEED]``.

Each drawing (rate of the ports, batch, wire type, overlap) is a room of four hosts. The first one is measured
alone, and the links as every launch measures them; then two, three and four hosts are predicted, and trained.
Simulated workers, real sockets. Needs root, two idle cores and about six minutes.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from tests.cluster.cluster import Cluster, Network
from tests.cluster.node import CHECKOUT
from tests.cluster.test_scale_test import OFFICE

DRAWINGS = 4
COUNTS = "2,3,4"
SPEC: dict[str, Any] = {
    "name": "room",
    "framework": "sim",
    "model": {"name": "resnet18"},
    "sim": {"samples_per_second": 32},
    "steps": 8,
}
COLUMNS = ("hosts", "batch", "ports", "wire", "overlap", "predicted", "measured", "error")


def main(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    errors = [error for _ in range(DRAWINGS) for error in drawing(rng)]
    print(f"\nthe largest error is {max(map(abs, errors)):.1f} %, of {len(errors)}")


def drawing(rng: random.Random) -> list[float]:
    """Rows of one room; the errors of its predictions, in per cent of the measured step."""
    mbit, batch = rng.choice([100, 200, 400]), rng.choice([24, 32, 48])
    wire, overlap = rng.choice([None, "bf16", "fp16"]), rng.choice([True, False])
    keys = {**SPEC, "batch_size": batch, "allreduce": {"wire_dtype": wire, "overlap": overlap}}
    points = measured(mbit, keys)
    errors = []
    for foretold in [point for point in points if point["kind"] == "predicted"]:
        (real,) = [p for p in points if p["kind"] != "predicted" and p["workers"] == foretold["workers"]]
        errors.append(100 * (foretold["step_s"] / real["step_s"] - 1))
        cells = [
            str(real["workers"]),
            str(batch),
            f"{mbit} Mbit/s",
            wire or "fp32",
            str(overlap),
            f"{foretold['step_s']:.3f} s",
            f"{real['step_s']:.3f} s",
            f"{errors[-1]:+.1f} %",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    return errors


def measured(mbit: int, keys: dict[str, Any]) -> list[dict[str, Any]]:
    """What ``scale-test`` found in a room whose hosts share a switch of such ports."""
    with Cluster(4, [OFFICE, Network("10.80.0.0/24", "en5", mbit=mbit)]) as cluster:
        for host in cluster.hosts.values():
            host.install()
        work = cluster.root / "work"
        work.mkdir()
        (work / "room.yaml").write_text(json.dumps(keys))
        command = ["scale-test", "room.yaml", "--hosts", ",".join(cluster.hosts), "--out", "out"]
        done = cluster.launcher.run(
            [sys.executable, "-m", "mlrun.cli", *command, "--counts", COUNTS, "--predict", COUNTS],
            cwd=work,
            timeout=400,
            env={**cluster.launcher.environment(), "PYTHONPATH": str(CHECKOUT)},
        )
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        points: list[dict[str, Any]] = json.loads((work / "out" / "scale.json").read_text())["points"]
    return points


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(10**6))
