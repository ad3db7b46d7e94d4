"""mlrun.keras where Keras is on PyTorch."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.backends.torch_ranks import RankPool
from tests.tensorflow import torch_keras_ranks as ranks

if importlib.util.find_spec("keras") is None:
    pytest.skip("Keras isn't installed: make tensorflow-test", allow_module_level=True)


def test_fit_on_two_ranks_trains_as_one_on_the_joint_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pool = RankPool(2)
    try:
        ((backend, alone),) = pool.run(1, ranks.fit)
        (_, first), (_, second) = pool.run(2, ranks.fit)
    finally:
        pool.close()
    assert backend == "torch"
    for one, other, expected in zip(first, second, alone, strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
