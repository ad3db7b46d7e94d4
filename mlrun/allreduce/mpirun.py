"""The command line of Open MPI's mpirun for ranks of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from mlrun.errors import RequestError

INSTALL = "pip install 'mlrun-ring[mpi]', or use engine: ring"


def command(size: int) -> list[str]:
    """``mpirun`` with its options for ``size`` ranks, as the beginning of a command.

    Raises:
        RequestError: no mpirun beside this Python or on the PATH.
    """
    beside = str(Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if mpirun is None:
        raise RequestError("allreduce.engine mpi needs mpirun, which isn't on the PATH", fix=INSTALL)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, "-n", str(size), "--oversubscribe", "--bind-to", "none", *root]
