"""Custom operations in real runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.conftest import Mlrun

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op"


def test_a_broken_source_ends_the_run_with_host_file_and_the_compilers_words(
    mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "broken.cc").write_text("int number() { return tow; }")
    run = mlrun("launch", spec(custom_ops=["broken.cc"]), "-np", "2")
    assert run.finish() == 2
    failure = run.said("FailureEvent")[0]
    assert failure["host"] == "localhost"
    assert "broken.cc:1:23: error: " in failure["message"]


@pytest.mark.slow
def test_the_torch_example_trains_on_two_ranks(mlrun: Mlrun) -> None:
    run = mlrun("launch", str(EXAMPLE / "torch.yaml"), "-np", "2", "--smoke", "--set", f"workdir={EXAMPLE}")
    assert run.finish() == 0
    assert run.summary["hashes_agree"]
