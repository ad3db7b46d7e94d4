"""FSDP2, DTensor, DCP and the others that PyTorch builds on torch.distributed, over the ring."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch_features as features
from torch_ranks import RankPool


def test_fsdp2_trains_as_one_process_does(ranks: RankPool) -> None:
    for parameters, sharded in ranks.run(3, features.train_fsdp2):
        assert sharded
        assert parameters == pytest.approx(features.train_alone(3), abs=1e-5)


def test_a_mesh_of_data_and_tensor_parallel_ranks_trains_as_one_process_does(ranks: RankPool) -> None:
    for parameters in ranks.run(4, features.train_on_a_mesh):
        assert parameters == pytest.approx(features.train_alone(2), abs=1e-5)


def test_a_sharded_optimizer_trains_as_one_process_does(ranks: RankPool) -> None:
    results = ranks.run(2, features.train_with_sharded_optimizer)
    for parameters, _ in results:
        assert parameters == pytest.approx(features.train_alone(2), abs=1e-5)
    assert sum(kept for _, kept in results) == 4
    assert all(kept < 4 for _, kept in results)


def test_post_local_sgd_averages_within_its_groups_between_rounds(ranks: RankPool) -> None:
    seen, agree = zip(*ranks.run(4, features.train_with_local_steps), strict=True)
    assert list(agree) == [[True, True, False, True]] * 4
    between = [steps[2] for steps in seen]
    assert between[0] == between[1]
    assert between[2] == between[3]
    assert between[0] != between[2]


def test_join_lets_ranks_with_more_data_go_on(ranks: RankPool) -> None:
    results = ranks.run(3, features.train_uneven)
    assert [steps for _, steps in results] == [2, 3, 4]
    assert results[0][0] == results[1][0] == results[2][0]


def test_dtensor_computes_on_a_mesh(ranks: RankPool) -> None:
    for found in ranks.run(4, features.multiply_sharded):
        assert found == {"equal": True, "moved": True, "local": [4, 4]}


def test_dcp_reads_a_checkpoint_into_another_layout(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, features.save_and_load_a_checkpoint, str(tmp_path)) == [True, True]


def test_a_checkpoint_is_written_beside_training(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, features.save_while_training, str(tmp_path)) == [True, True]


def test_a_pipeline_of_ranks_computes_the_gradients_of_one_process(ranks: RankPool) -> None:
    wanted = features.gradients_without_a_pipeline(3)
    for found, expected in zip(ranks.run(3, features.pass_through_a_pipeline), wanted, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_a_script_in_a_worker_uses_the_links_of_its_run(ranks: RankPool) -> None:
    assert ranks.run(3, features.use_the_runs_ring) == [6.0] * 3


def test_functional_collectives(ranks: RankPool) -> None:
    for found in ranks.run(2, features.use_functional_collectives):
        assert found == {"sum": [3.0, 3.0], "gathered": [1.0, 2.0], "scattered": [1.5]}


def test_groups_of_ranks_that_are_no_neighbours(ranks: RankPool) -> None:
    results = ranks.run(4, features.use_groups)
    assert [r["sums"] for r in results] == [
        [101.0, None, 1011.0, None],
        [None, 1010.0, 1011.0, None],
        [101.0, None, None, 100.0],
        [None, 1010.0, 1011.0, None],
    ]
    for rank, found in enumerate(results):
        assert found["whole"] == [1111.0, 1111.0]
        assert found["received"] == rank ^ 2
        assert found["names"] == [f"rank {rank & 1}", f"rank {rank & 1 | 2}"]


def test_types_that_have_no_sum_are_moved(ranks: RankPool) -> None:
    assert ranks.run(2, features.exchange_types_without_sums) == [
        [[0.0, 1.0, 2.0]] * 3,
        [[2.0, 4.0, 4.0]] * 3,
    ]


def test_calls_that_are_issued_as_one(ranks: RankPool) -> None:
    for found in ranks.run(2, features.use_coalescing):
        assert found == [[3.0], [3.0] * 2, [3.0] * 3, [2.0], [2.0] * 2]


def test_a_monitored_barrier_names_who_is_missing(ranks: RankPool) -> None:
    results = ranks.run(3, features.miss_a_barrier, 1)
    assert results[1] == "absent"
    for told in (results[0], results[2]):
        assert "ranks missing in monitored_barrier after 0.5 s: 1" in told


def test_what_is_refused_says_so(ranks: RankPool) -> None:
    for told in ranks.run(2, features.ask_for_what_is_refused):
        assert "pass src" in told["any source"]
        assert "BXOR" in told["bitwise"]
        assert "sum, avg, min, max and product" in told["premul"]
        assert "dense" in told["sparse"]
        assert "the output is torch.float32 and the input torch.int32" in told["types"]
