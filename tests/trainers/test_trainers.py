"""Scripts of people's trainers, on two ranks: one model, not two."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE_S = 120


def train(script: str) -> list[dict[str, str]]:
    """What each of two ranks of ``script`` says at its end."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, str(HERE / script)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = re.findall(r"rank=.*?digest='\w+'", ended.stdout)
    assert len(lines) == 2, ended.stdout
    return [dict(word.split("=", 1) for word in line.split()) for line in sorted(lines)]


@pytest.mark.parametrize("script", ["rank_accelerate.py", "rank_lightning.py"])
def test_ranks_share_the_data_and_end_with_one_model(script: str) -> None:
    first, second = train(script)
    assert (first["rank"], second["rank"]) == ("0", "1")
    assert first["of"] == second["of"] == "2"
    assert first["seen"] == second["seen"] == "96"
    assert first["total"] == "192"
    assert first["digest"] == second["digest"]


def test_hugging_faces_trainer_ends_with_one_model() -> None:
    first, second = train("rank_trainer.py")
    assert first["of"] == "2"
    assert first["steps"] == "4"
    assert first["digest"] == second["digest"]


def test_joining_too_late_is_refused() -> None:
    late = "from accelerate import Accelerator; Accelerator(); import mlrun.accelerate as a; a.join()"
    ended = subprocess.run(
        [sys.executable, "-c", late], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "before the first Accelerator" in ended.stderr
