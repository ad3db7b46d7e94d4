"""Scripts on two ranks, by torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``torchrun -m mlrun.horovod ARGUMENTS`` with two ranks, to its end."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*torchrun, "-m", "mlrun.horovod", *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def parameter_sums(printed: str) -> list[str]:
    """What the examples print of each rank's parameters at their end."""
    return re.findall(r"rank \d: sum of parameters (-?\d+\.\d+)", printed)
