"""Whole scripts written for Horovod, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.horovod.scripts import EXAMPLES, parameter_sums, start


def test_the_torch_example_trains_one_model_on_two_ranks() -> None:
    run = start(str(EXAMPLES / "horovod_torch.py"), "--epochs", "1")
    assert run.returncode == 0, run.stdout + run.stderr
    first, second = parameter_sums(run.stdout)
    assert first == second


def test_a_rank_that_raises_frees_the_others(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(
        "import sys\nimport horovod.torch as hvd\nimport torch\nhvd.init()\n"
        "if hvd.rank() == 1:\n    raise ValueError(f'no luck with {sys.argv[1]}')\n"
        "hvd.allreduce(torch.ones(1))\n"
    )
    run = start(str(script), "seven")
    assert run.returncode == 1
    assert "ValueError: no luck with seven" in run.stderr


def test_what_is_no_rank_says_how_to_become_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import horovod.torch\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    for arguments in ([str(script)], ["nowhere.py"], []):
        run = subprocess.run(
            [sys.executable, "-m", "mlrun.horovod", *arguments],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 2
        assert "torchrun --nproc-per-node 2 -m mlrun.horovod SCRIPT.py" in run.stderr
