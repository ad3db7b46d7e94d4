"""Scripts written for horovod.torch, on two real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.backends.torch_ranks import RankPool
from tests.horovod import torch_ranks as ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool(2)
    yield made
    made.close()


def test_each_collective_does_what_horovods_does(pool: RankPool) -> None:
    first, second = pool.run(2, ranks.collectives)
    assert first["where"] == (0, 2, True)
    for found, value in ((first, 1.0), (second, 2.0)):
        assert found["average"] == [1.5, 1.5]
        assert found["sum"] == found["old average"] == [3.0, 3.0]
        assert found["fp16"] == torch.float32
        assert found["kept"] == [value, value]
        assert found["max"] == [2.0, 2.0]
        assert found["polled"]
        assert found["grouped"] == [[3.0, 3.0], [1]]
        assert found["gathered"] == [[0, 0], [1, 1], [1, 1]]
        assert found["broadcast"] == [2.0, 2.0]
        assert found["object"] == {"from": 1}
        assert found["objects"] == ["", "x"]
    assert first["alltoall"] == ([0.0, 10.0, 11.0, 12.0], [1, 3])
    assert second["alltoall"] == ([1.0, 2.0], [2, 0])
    assert (first["even rows"], second["even rows"]) == ([0.0, 2.0], [4.0, 6.0])
    assert (first["uneven rows"], second["uneven rows"]) == ([0.0, 2.0], [4.0])


def test_what_is_missing_says_so(pool: RankPool) -> None:
    said = pool.run(2, ranks.refusals)[0]
    assert "hvd.Average" in said["Adasum"]
    assert "process sets" in said["process set"]
    assert "process sets" in said["adding one"]
    assert "docs/horovod.md" in said["SyncBatchNorm"]
    assert "mlrun launch" in said["run"]
    assert "op=hvd.Sum" in said["op and average"]
    assert "twice" in said["same name twice"]


def test_gradients_flow_through_collectives(pool: RankPool) -> None:
    first, second = pool.run(2, ranks.gradient_through)
    assert first == ([1.5, 1.5], [0.0, 2.0])
    assert second == ([1.5, 1.5], [4.0, 6.0])


@pytest.mark.parametrize(
    ("passes", "options", "tolerance"),
    [(1, {}, 1e-6), (2, {"gradient_predivide_factor": 2.0}, 1e-6), (1, {"fp16": True}, 1e-3)],
)
def test_two_ranks_train_as_one_does_on_the_joint_batch(
    pool: RankPool, passes: int, options: dict[str, Any], tolerance: float
) -> None:
    alone = ranks.trained_alone(5, passes)
    first, second = pool.run(2, ranks.trained, 5, passes, options)
    assert first == second
    for one, expected in zip(first, alone, strict=True):
        np.testing.assert_allclose(one, expected, rtol=tolerance, atol=tolerance)


def test_a_parameter_that_a_rank_didnt_use_takes_part_with_zeros(pool: RankPool) -> None:
    assert pool.run(2, ranks.unused_parameters) == [[-3.0, -3.0]] * 2


def test_a_misused_optimizer_says_what_to_call(pool: RankPool) -> None:
    cleared, once_more = pool.run(2, ranks.misused_optimizer)[0]
    assert "step()" in cleared
    assert "backward_passes_per_step" in once_more


def test_a_rank_that_joined_adds_zeros_until_all_have(pool: RankPool) -> None:
    assert pool.run(2, ranks.joined_early) == [([2.0], 1), ([2.0, 1.0, 1.0], 1)]


def test_a_call_that_needs_a_joined_rank_fails_on_both(pool: RankPool) -> None:
    for said in pool.run(2, ranks.gathers_after_a_join):
        assert "rank 0 has joined" in said


def test_an_elastic_script_starts_from_rank_0s_state(pool: RankPool) -> None:
    assert pool.run(2, ranks.elastic) == [(5, [0.0])] * 2
