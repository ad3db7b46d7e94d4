"""Run by mpirun: write down the environment that makes this process an MPI rank, then keep its place.

Leaves when mpirun has gone, or the worker that started it (the one that holds the lock).
Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from pathlib import Path


def main(folder: Path) -> int:
    mpirun = os.getppid()
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    mine = {k: v for k, v in os.environ.items() if k.startswith(("OMPI_", "OPAL_", "PMIX_", "PRTE_"))}
    part = folder / f"{rank}.part"
    part.write_text(json.dumps(mine))
    part.rename(folder / rank)
    with (folder / "alive").open("r+") as alive:
        while os.getppid() == mpirun and not _free(alive.fileno()):
            time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    return 1  # a rank that fails makes mpirun end the others


def _free(lock: int) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
