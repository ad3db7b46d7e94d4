"""Hooks: the user's commands at the end of a run. Whatever becomes of one, the run's outcome stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from mlrun.protocol import LogEvent
from mlrun.spec.cluster import Hooks

TIMEOUT_S = 60.0
LOG_FILE = "hook.log"


def run_hook(
    hooks: Hooks, run_dir: Path, summary: dict[str, Any], timeout_s: float = TIMEOUT_S
) -> LogEvent | None:
    """Run the hook for how the run ended, and return what is to be said of it; None where there is none.

    It finds ``MLRUN_RUN_DIR`` and ``MLRUN_STATUS`` in its environment; what it prints goes to ``hook.log``.
    """
    name = {"done": "done", "failed": "failed"}.get(summary["status"])
    command = getattr(hooks, name) if name is not None else None
    if command is None:
        return None
    why = _run(command, run_dir, summary["status"], timeout_s)
    if why is None:
        return LogEvent(f"hook {name}: done")
    return LogEvent(f"hook {name} {why}; the run is {summary['status']} all the same", "warning")


def _run(command: str, run_dir: Path, status: str, timeout_s: float) -> str | None:
    """Why the command didn't end well, or None."""
    environment = {**os.environ, "MLRUN_RUN_DIR": str(run_dir), "MLRUN_STATUS": status}
    try:
        with (run_dir / LOG_FILE).open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        return f"can't be started: {error.strerror}"
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"was ended after {timeout_s:g} s"
    finally:
        _end(process)
    return None if code == 0 else f"ended with {code} (see {LOG_FILE})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """What the hook started goes with it, unless it made a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
