"""End every process that bears a run's mark: the last resort where an agent is gone.

``python -m mlrun.agent.reap RUN_ID`` does it on a host whose agent no longer answers.
"""

from __future__ import annotations

import os
import sys

import psutil

from mlrun.agent.command import RUN_VARIABLE

GRACE_S = 3.0
"""Workers whose agent is gone end themselves; who hasn't by then is killed."""


def reap(run_id: str) -> int:
    """Wait for the run's processes to end, kill what is left, and return how many that were."""
    _, alive = psutil.wait_procs(marked(run_id), timeout=GRACE_S)
    for process in alive:
        _kill(process)
    psutil.wait_procs(alive, timeout=GRACE_S)
    return len(alive)


def sweep(run_id: str) -> int:
    """Kill the run's processes other than this one: what workers started in sessions of their own."""
    left = [process for process in marked(run_id) if process.pid != os.getpid()]
    for process in left:
        _kill(process)
    psutil.wait_procs(left, timeout=GRACE_S)
    return len(left)


def marked(run_id: str) -> list[psutil.Process]:
    """This user's processes that a run started, and what those started."""
    return [process for process in psutil.process_iter() if _mark(process) == run_id]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(RUN_VARIABLE)
    except (psutil.Error, OSError):
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    reap(sys.argv[1])
