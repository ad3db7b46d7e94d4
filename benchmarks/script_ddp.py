"""A DDP script under ``mlrun launch`` beside torchrun with gloo: ``benchmarks/script_ddp.py [-np N]``.

The script is the same, and leaves the backend to the default. Its model is mostly gradients: 8 MB of them for
little computing, on the CPU. Prints steps per second of both and their ratio in each turn.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """\
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, 512)
    for step in range(220):
        if step == 20:
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    print(f"steps/s {200 / (time.perf_counter() - start):.2f}", flush=True)
    dist.destroy_process_group()
"""


def speed(command: list[str], folder: Path) -> float:
    """Steps per second of the slowest rank."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, check=True, capture_output=True, text=True, timeout=300
    )
    return min(float(each) for each in re.findall(r"steps/s ([\d.]+)", done.stdout))


def main(workers: int, turns: int) -> None:
    launch = f"mlrun.cli launch script.py -np {workers} --console plain".split()
    torchrun = f"torch.distributed.run --standalone --nproc-per-node {workers} script.py".split()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        Path(name, "script.py").write_text(SCRIPT)
        for turn in range(turns):
            order = [launch, torchrun] if turn % 2 == 0 else [torchrun, launch]
            found = {command[0]: speed(command, Path(name)) for command in order}
            ours, theirs = found[launch[0]], found[torchrun[0]]
            ratios.append(ours / theirs)
            print(
                f"mlrun launch {ours:.1f} steps/s, torchrun with gloo {theirs:.1f}: {ratios[-1]:.2f}",
                flush=True,
            )
    print(f"{workers} workers: {statistics.median(ratios):.2f} times torchrun with gloo (wanted: 1.05)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-np", type=int, default=2, dest="workers")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    main(arguments.workers, arguments.turns)
