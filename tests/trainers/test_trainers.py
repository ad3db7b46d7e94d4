"""Scripts of people's trainers, on two ranks: one model, not two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE_S = 240


def run(*script: str) -> str:
    """What two ranks of a script print."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(HERE / script[0]), *script[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def train(script: str) -> list[dict[str, str]]:
    """What each of two ranks says at its end."""
    lines = re.findall(r"rank=.*?digest='\w+'", run(script))
    assert len(lines) == 2
    return [dict(word.split("=", 1) for word in line.split()) for line in sorted(lines)]


@pytest.mark.parametrize(
    ("script", "steps"),
    [("rank_accelerate.py", "12"), ("rank_trainer.py", "4"), ("rank_lightning.py", "64")],
)
def test_ranks_share_the_data_and_end_with_one_model(script: str, steps: str) -> None:
    first, second = train(script)
    assert (first["rank"], second["rank"]) == ("0", "1")
    assert first["of"] == second["of"] == "2"
    assert first["steps"] == second["steps"] == steps
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("name", ["test_ops", "test_sync", "test_script"])
def test_accelerates_own_scripts_pass(name: str) -> None:
    run("rank_own.py", name)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (
            "from accelerate import Accelerator; Accelerator(); import mlrun.accelerate as a; a.join()",
            "before the first Accelerator",
        ),
        ("import mlrun.lightning as l; l.trainer_options()", "start the script with torchrun"),
    ],
)
def test_what_cant_join_is_told_what_to_do(code: str, fix: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 1
    assert fix in ended.stderr
