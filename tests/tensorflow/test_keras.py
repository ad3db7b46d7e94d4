"""mlrun.keras on two real ranks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backends.torch_ranks import RankPool

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)

from tests.tensorflow import ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool(2)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("policy", "bucket_bytes", "tolerance"),
    [
        ("float32", 1, 1e-6),
        ("float32", 1 << 20, 1e-6),
        ("mixed_bfloat16", 1 << 20, 2e-2),
        ("mixed_float16", 1 << 20, 2e-3),
    ],
)
def test_two_ranks_update_as_one_does_on_the_joint_batch(
    pool: RankPool, policy: str, bucket_bytes: int, tolerance: float
) -> None:
    sparse, alone = ranks.updated(None, policy, bucket_bytes)
    assert sparse
    (_, first), (_, second) = pool.run(2, ranks.updated, policy, bucket_bytes)
    for one, other, expected in zip(first, second, alone, strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(one, expected, rtol=tolerance, atol=tolerance)


def test_fit_leaves_equal_weights_and_a_model_that_loads_without_mlrun(
    pool: RankPool, tmp_path: Path
) -> None:
    first, second = pool.run(2, ranks.fitted, str(tmp_path))
    assert first == second
    with zipfile.ZipFile(tmp_path / "model.keras") as saved:
        assert b"mlrun" not in saved.read("config.json")
    code = (
        "import sys; sys.modules['mlrun'] = None; import keras; "
        f"print(type(keras.models.load_model({str(tmp_path / 'model.keras')!r}).optimizer).__module__)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip().startswith("keras.")


def test_an_optimizer_is_wrapped_once(pool: RankPool) -> None:
    assert "wrapped already" in pool.run(2, ranks.wrapping_twice)[0]


def test_loss_scaling_around_a_wrapped_optimizer_is_refused(pool: RankPool) -> None:
    assert "LossScaleOptimizer(optimizer)" in pool.run(2, ranks.wrapping_within_loss_scaling)[0]
