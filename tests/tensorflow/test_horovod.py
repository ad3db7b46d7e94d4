"""Scripts written for horovod.tensorflow and horovod.keras, on two real ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.backends.torch_ranks import RankPool
from tests.horovod.scripts import EXAMPLES, parameter_sums, start

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)

from tests.tensorflow import horovod_ranks as ranks

STEPS, RATE = 4, 0.2


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool(2)
    yield made
    made.close()


@pytest.mark.parametrize("traced", [False, True])
def test_each_collective_does_what_horovods_does(pool: RankPool, traced: bool) -> None:
    first, second = pool.run(2, ranks.collectives, traced)
    for found in (first, second):
        assert found["average"] == found["fp16"] == [1.5, 1.5]
        assert found["sum"] == [3.0, 3.0]
        assert found["grouped"] == [4.0, 4.0]
        assert found["sparse"] == [[1.0, 1.0], [2.0, 2.0]]
        assert found["gathered"] == [[0, 0], [1, 1], [1, 1]]
        assert found["broadcast"] == [2.0, 2.0]
        assert found["object"] == {"from": 1}
        assert found["objects"] == ["", "x"]
    assert (first["came"], first["counts"]) == ([0, 10, 11, 12], [1, 3])
    assert (second["came"], second["counts"]) == ([1, 2], [2, 0])
    assert (first["rows"], second["rows"]) == ([0.0, 2.0], [4.0])


def test_gradients_flow_through_collectives(pool: RankPool) -> None:
    first, second = pool.run(2, ranks.gradients_through)
    assert first == [[0.0, 1.5], [0.0, 3.0], [0.0, 0.0]]
    assert second == [[0.0, 1.5], [6.0, 9.0], [0.0, 3.0]]


@pytest.mark.parametrize(("op", "rate"), [("Average", RATE), ("Sum", RATE / 2)])
def test_a_tape_trains_two_ranks_as_one_on_the_joint_batch(pool: RankPool, op: str, rate: float) -> None:
    first, second = pool.run(2, ranks.trained_by_tape, STEPS, rate, op)
    _same(first, second, ranks.trained_alone(STEPS, RATE))


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, RATE),
        ({"op": "Sum", "compression": "fp16"}, RATE / 2),
    ],
)
def test_fit_trains_two_ranks_as_one_on_the_joint_batch(
    pool: RankPool, options: dict[str, Any], rate: float
) -> None:
    first, second = pool.run(2, ranks.fitted, STEPS, rate, options)
    tolerance = 1e-2 if options else 1e-5
    _same(first["weights"], second["weights"], ranks.trained_alone(STEPS, RATE), tolerance)
    assert first["losses"] == second["losses"]


def test_several_passes_add_up_before_an_update(pool: RankPool) -> None:
    options = {"backward_passes_per_step": 2}
    first, second = pool.run(2, ranks.fitted, 2, RATE, options)
    _same(first["weights"], second["weights"], ranks.trained_alone(1, 2 * RATE))


def test_the_rate_warms_up_over_the_first_epochs(pool: RankPool) -> None:
    assert pool.run(2, ranks.warmed_up)[0] == pytest.approx([0.3, 0.4, 0.4])


def test_a_rank_that_joined_adds_zeros_until_all_have(pool: RankPool) -> None:
    assert pool.run(2, ranks.joined_early) == [([2.0], 1), ([2.0, 1.0, 1.0], 1)]


def test_what_is_missing_says_so(pool: RankPool) -> None:
    said = pool.run(2, ranks.refusals)[0]
    assert "hvd.Average" in said["Adasum"]
    assert "hvd.Average or hvd.Sum" in said["max of gradients"]
    assert "process sets" in said["process set"]
    assert "broadcast_variables" in said["global variables"]
    assert "docs/horovod.md" in said["SyncBatchNormalization"]
    assert "docs/horovod.md" in said["nothing"]


@pytest.mark.parametrize(
    "arguments", [("horovod_keras.py", "--epochs", "1"), ("horovod_tensorflow.py", "--steps", "10")]
)
def test_an_example_trains_one_model_on_two_ranks(arguments: tuple[str, ...]) -> None:
    run = start(str(EXAMPLES / arguments[0]), *arguments[1:])
    assert run.returncode == 0, run.stdout + run.stderr
    first, second = parameter_sums(run.stdout)
    assert first == second


def _same(one: list[Any], other: list[Any], expected: list[Any], tolerance: float = 1e-5) -> None:
    for a, b, c in zip(one, other, expected, strict=True):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=tolerance, atol=tolerance)
