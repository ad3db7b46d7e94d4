"""TensorFlowBackend on real ranks: a step is the same whatever the number of ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.backends.torch_ranks import RankPool

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)

from tests.tensorflow import backend_ranks as ranks

MLP = {
    "name": "test",
    "framework": "tensorflow",
    "model": {"name": "mlp", "args": {"hidden": [32, 32]}},
    "data": {"source": "digits", "workers": 0},
    "global_batch_size": 32,
    "steps": 60,
    "threads": 1,
    "device": "cpu",
    "optimizer": {"lr": 0.05, "weight_decay": 0.01, "clip_norm": 1.0},
}
MANY_BUCKETS = {"allreduce": {"bucket_mb": 0.001}}
MIXED = {
    "model": {"name": "tests.tensorflow.backend_ranks:make_tokens_and_images"},
    "data": {"source": "tests.tensorflow.backend_ranks:TokensAndImages", "classes": 3, "val_split": 0.2},
    "global_batch_size": 5,
    "workdir": str(Path(__file__).parents[2]),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool(2)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        pytest.param({}, 1e-5, id="mlp"),
        pytest.param(MIXED, 1e-5, id="convolutions and embedding, a last batch that one rank sits out"),
        pytest.param({**MIXED, "precision": "bf16"}, 2e-2, id="bf16"),
        pytest.param({**MIXED, "precision": "fp16"}, 5e-3, id="fp16"),
        pytest.param({"grad_accumulation": 3, **MIXED}, 1e-5, id="accumulation"),
    ],
)
def test_two_ranks_train_as_one(pool: RankPool, change: dict[str, Any], tolerance: float) -> None:
    spec = {**MLP, **MANY_BUCKETS, **change}
    (alone,) = pool.run(1, ranks.train, spec, 8)
    first, second = pool.run(2, ranks.train, spec, 8)
    assert first["hash"] == second["hash"]
    assert first["buckets"] > 1
    assert [a + b for a, b in zip(first["samples"], second["samples"], strict=True)] == alone["samples"]
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=tolerance, atol=tolerance)
    for path, value in alone["weights"].items():
        np.testing.assert_allclose(first["weights"][path], value, rtol=tolerance, atol=tolerance)
    assert first["evaluation"] == second["evaluation"]
    assert first["evaluation"].samples == alone["evaluation"].samples


def test_overlap_changes_no_bit(pool: RankPool) -> None:
    spec = {**MLP, "model": {"name": "resnet8", "args": {"width": 4}}}
    plain = pool.run(2, ranks.train, {**spec, "allreduce": {"overlap": False, "bucket_mb": 0.001}}, 3)
    overlapped = pool.run(2, ranks.train, {**spec, **MANY_BUCKETS}, 3)
    assert {each["hash"] for each in [*plain, *overlapped]} == {plain[0]["hash"]}


def test_a_gradient_that_isnt_finite_is_applied_nowhere_and_its_rank_named(pool: RankPool) -> None:
    first, second = pool.run(2, ranks.train_with_nan_on, 1, MLP)
    for rank in (first, second):
        assert rank["applied"] == [True, False]
        assert rank["unchanged"]
    assert (first["culprit"], second["culprit"]) == (None, "loss")


def test_an_abort_ends_a_step_with_the_engines_own_error(pool: RankPool) -> None:
    for said in pool.run(2, ranks.train_until_aborted, MLP):
        assert said.startswith("AbortedError: ")
        assert "pulled the plug" in said


def test_ranks_go_on_alone_from_the_same_weights(pool: RankPool) -> None:
    first, second = pool.run(2, ranks.train_then_alone, MLP)
    assert first == second
    assert first[-1] < first[0]


def test_images_come_in_the_order_of_the_sampler_and_a_broken_one_is_named(
    pool: RankPool, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.full((9, 12, 3), 20 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    data = {"source": "imagefolder", "path": str(tmp_path), "image_size": 8, "workers": 2}
    spec = {**MLP, "data": data, "global_batch_size": 5}
    ((targets, said),) = pool.run(1, ranks.read_images, spec)
    order = np.random.default_rng((0, 0)).permutation(12)
    assert np.concatenate(targets).tolist() == (np.repeat([0, 1, 2], 4)[order]).tolist()
    assert said.startswith("RunFailedError: ")
    assert "0.png" in said


def test_the_example_trains_by_fit(pool: RankPool) -> None:
    (accuracy, first), (_, second) = pool.run(2, ranks.run_example)
    assert accuracy >= 0.97
    assert first == second
