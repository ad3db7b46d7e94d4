"""The custom operation of the examples, in a real run."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op"

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)


def launch(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlrun.cli", "launch", "keras.yaml", "-np", "2", "--smoke"]
    return subprocess.run(
        [*command, "--console", "json"], cwd=folder, check=False, capture_output=True, text=True, timeout=240
    )


def test_zero_out_is_built_and_trains_on_two_ranks(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "custom_op")
    run = launch(folder)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["summary"]["hashes_agree"]


def test_a_broken_source_is_told_in_the_compilers_words(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "custom_op")
    source = folder / "zero_out.cc"
    source.write_text("#error what is this\n" + source.read_text())
    run = launch(folder)
    assert run.returncode == 2
    assert "zero_out.cc:1:2: error: #error what is this" in run.stdout
