"""Scripts in a folder of the test's own, launched through the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Done:
    """A run that has ended."""

    code: int
    output: str
    folder: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        assert self.folder is not None
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def log(self, rank: int) -> str:
        assert self.folder is not None
        return (self.folder / f"rank-{rank}.log").read_text()


Launch = Callable[..., Done]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """``launch(code, *options, args=[...])``: write ``train.py`` and launch it."""

    def run(code: str, *options: str, args: tuple[str, ...] = ()) -> Done:
        (tmp_path / "train.py").write_text(textwrap.dedent(code))
        command = ["launch", "train.py", *options, "--console", "plain", "--runs-dir", "runs", "--", *args]
        done = subprocess.run(
            [sys.executable, "-m", "mlrun.cli", *command],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        folders = sorted((tmp_path / "runs").iterdir()) if (tmp_path / "runs").is_dir() else []
        return Done(done.returncode, done.stdout + done.stderr, folders[-1] if folders else None)

    return run
