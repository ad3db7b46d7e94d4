"""``python -m mlrun.launch.detached``: a launcher that lives on when whoever started it has gone.

One line of JSON comes in on stdin (see ``Request``) and one goes out: the run's folder, or why there is none.
By then the launcher is a process of its own session; what it prints is in ``launcher.log`` of that folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlrun.errors import ExitCode, MlrunError
from mlrun.launch.launcher import launch
from mlrun.spec import JobSpec

PROGRAM = "mlrun.launch.detached"
LOG_FILE = "launcher.log"
_LAUNCHER = "--launcher"


@dataclass(frozen=True, slots=True)
class Request:
    """What to launch. ``env``: variables that the spec passes on, which only the asking machine has."""

    spec: dict[str, Any]
    runs_dir: str
    env: dict[str, str]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """``run_dir`` where the run has begun, else ``error`` and its exit code."""

    run_dir: str | None = None
    error: str = ""
    exit_code: int = ExitCode.RUN_FAILED

    @classmethod
    def from_line(cls, line: str) -> Answer:
        """Raises ValueError or TypeError where ``line`` is something else."""
        return cls(**json.loads(line))


def start() -> int:
    """Start the launcher, pass its request and its answer on, and leave it alone."""
    launcher = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, _LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.write(sys.stdin.buffer.readline())
    launcher.stdin.close()
    sys.stdout.buffer.write(launcher.stdout.readline())
    return 0


def be_launcher() -> int:
    """Launch what stdin asks for, and see it through."""
    request = Request(**json.loads(sys.stdin.readline()))
    os.environ.update(request.env)

    def begun(run_dir: Path) -> None:
        print(json.dumps(asdict(Answer(str(run_dir)))), flush=True)
        _leave(run_dir)

    runs_dir = Path(request.runs_dir).expanduser()
    try:
        spec = JobSpec.model_validate(request.spec)
        return launch(spec, console="off", runs_dir=runs_dir, begun=begun).exit_code
    except MlrunError as error:
        print(json.dumps(asdict(Answer(None, str(error), error.exit_code))), flush=True)
        return error.exit_code


def _leave(run_dir: Path) -> None:
    """Let go of everything that belongs to whoever started this."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    log = os.open(run_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nowhere, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nowhere)
    os.close(log)


if __name__ == "__main__":
    sys.exit(be_launcher() if _LAUNCHER in sys.argv[1:] else start())
