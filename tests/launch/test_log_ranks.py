"""Whose output is shown, and that all of it is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TALKER = """
import os
from torch import nn

def build():
    print(f"rank {os.environ['RANK']} has something to say")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def launch(tmp_path: Path, spec: Callable[..., str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "talker.py").write_text(TALKER)
    job = spec(model={"name": "talker:build"}, steps=1)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "mlrun.cli",
            "launch",
            job,
            "-np",
            "3",
            "--console",
            "plain",
            *options,
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_one_rank_is_shown_and_all_are_kept(
    tmp_path: Path, launch: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = launch("--log-ranks", "0,2")
    assert done.returncode == 0
    shown = {rank for rank in range(3) if f"rank {rank} has something to say" in done.stdout}
    assert shown == {0, 2}
    for rank in range(3):
        (log,) = tmp_path.glob(f"runs/*/rank-{rank}.log")
        assert f"rank {rank} has something to say" in log.read_text()


def test_what_is_no_list_of_ranks_is_said(launch: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = launch("--log-ranks", "first")
    assert done.returncode == 2
    assert "'first' is no list of ranks" in done.stderr
