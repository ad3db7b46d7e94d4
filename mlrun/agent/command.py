"""The command and environment that start a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SOCKET_VARIABLE = "MLRUN_AGENT_SOCKET"
RUN_VARIABLE = "MLRUN_RUN"
LOCAL_RANK_VARIABLE = "MLRUN_LOCAL_RANK"
PIPES_VARIABLE = "MLRUN_PIPES"

_ONE_OF_MANY = f"""
p="${PIPES_VARIABLE}/$OMPI_COMM_WORLD_LOCAL_RANK"
"$@" >"$p.stdout" 2>"$p.stderr"
code=$?
echo $code >"$p.exit"
exit $code
"""
"""mpirun tells how the first of its processes ended, not how each did."""


def worker_command() -> list[str]:
    """One worker, started by the agent itself."""
    return [sys.executable, "-m", "mlrun.worker"]


def mpi_command(workers: int) -> list[str]:
    """All workers of this host under one ``mpirun``; each writes to its own named pipes, and how it ended
    to a file beside them.

    ``mpi4py -m`` turns an uncaught exception into an MPI abort, so that no peer waits for the dead.
    """
    program = [sys.executable, "-m", "mpi4py", "-m", "mlrun.worker"]
    options = ["-np", str(workers), "--bind-to", "none", "--oversubscribe", "--host", f"localhost:{workers}"]
    # More workers than cores: who waits for a peer must not keep the core from it.
    options += ["--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return [_mpirun(), *options, "/bin/sh", "-c", _ONE_OF_MANY, "sh", *program]


def _mpirun() -> str:
    beside_python = Path(sys.executable).with_name("mpirun")
    return str(beside_python) if beside_python.exists() else "mpirun"


def worker_environment(
    added: Mapping[str, str], *, run_id: str, socket: Path, threads: int | None, local_rank: int | None
) -> dict[str, str]:
    """This process's environment with ``added`` on top. ``local_rank`` is None where mpirun gives it."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    env |= added
    env[SOCKET_VARIABLE] = str(socket)
    env[RUN_VARIABLE] = run_id
    if local_rank is None:
        env[PIPES_VARIABLE] = str(socket.parent)
    else:
        env[LOCAL_RANK_VARIABLE] = str(local_rank)
    return env
