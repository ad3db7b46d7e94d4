"""What the launching machine's store costs: 5,000 small JPEGs, 4 hosts over ssh on this machine.

One run of two epochs with empty caches tells the bytes on the wire in each epoch. Then runs from the caches
and runs from local files take turns, because the machine's own speed drifts; each pair gives one ratio.
Needs Linux and root, from the top of the checkout: ``python -m benchmarks.data_store``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml

from mlrun.protocol import DataEvent, StepEvent
from mlrun.wire import decode
from tests.cluster.cluster import OFFICE, Cluster, missing
from tests.cluster.node import CHECKOUT
from tests.data.photographs import write_photographs

SPEC = {
    "name": "photographs",
    "task": "image-classification",
    "model": {"name": "mlp"},
    "data": {"source": "imagefolder", "path": "photographs", "image_size": 64, "workers": 1},
    "batch_size": 50,
    "optimizer": {"lr": 0.001},
    "device": "cpu",
    "threads": 1,
}
EPOCHS = 5
"""Of a run whose speed is told."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--pairs", type=int, default=3, help="pairs of runs from the caches and from local files"
    )
    asked = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"Skipped: {reason}.")
    with Cluster(asked.hosts, [OFFICE]) as room:
        for host in room.hosts.values():
            host.install()
        work = room.root / "work"
        write_photographs(work / "photographs", asked.files, side=160)
        size = sum(path.stat().st_size for path in (work / "photographs").rglob("*.jpg"))
        print(f"{asked.files:,} JPEGs, {size / 1e6:.1f} MB, {asked.hosts} hosts")
        _cold(room, work, size)
        for host in room.hosts.values():
            shutil.copytree(work / "photographs", host.home / "photographs")
        ratios = []
        for _ in range(asked.pairs):
            cached = _speed(_launch(room, work, location="launcher", epochs=EPOCHS))
            local = _speed(_launch(room, work, location="each-host", path="~/photographs", epochs=EPOCHS))
            ratios.append(cached / local)
            print(
                f"images/s from the caches {cached:.0f}, from local files {local:.0f}: {cached / local:.3f}"
            )
        print(f"median ratio {statistics.median(ratios):.3f}")
    return 0


def _cold(room: Cluster, work: Path, size: int) -> None:
    before = room.launcher.byte_counts("en0")[0]
    run = _launch(room, work, location="launcher", epochs=2)
    sent = room.launcher.byte_counts("en0")[0] - before
    fetched = [0, 0]
    seen: dict[int, int] = {}
    epoch_of: dict[int, int] = {}
    for event in _events(run):
        if isinstance(event, StepEvent) and event.rank is not None:
            epoch_of[event.rank] = event.epoch
        elif isinstance(event, DataEvent) and event.rank is not None:
            fetched[min(epoch_of.get(event.rank, 0), 1)] += event.bytes_fetched - seen.get(event.rank, 0)
            seen[event.rank] = event.bytes_fetched
    print(
        f"empty caches: {sent / 1e6:.1f} MB left the launching machine, ssh and all, "
        f"{sent / size:.2f} times the data"
    )
    for number, count in enumerate(fetched, 1):
        print(
            f"epoch {number}: {count / 1e6:.1f} MB fetched by all hosts ({count / size:.2f} times the data)"
        )


def _launch(room: Cluster, work: Path, *, epochs: int, **data: Any) -> Path:
    spec = {**SPEC, "epochs": epochs, "data": {**SPEC["data"], **data}}  # type: ignore[dict-item]
    (work / "spec.yaml").write_text(yaml.safe_dump(spec))
    argv = [sys.executable, "-m", "mlrun.cli", "launch", "spec.yaml", "-H", ",".join(room.hosts)]
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT)}
    done = room.launcher.run([*argv, "--console", "plain"], cwd=work, timeout=600, env=environment)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return max((work / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)


def _events(run: Path) -> list[Any]:
    return [decode(line) for line in (run / "events.jsonl").read_text().splitlines()]


def _speed(run: Path) -> float:
    speed: float = json.loads((run / "summary.json").read_text())["samples_per_second"]
    return speed


if __name__ == "__main__":
    sys.exit(main())
