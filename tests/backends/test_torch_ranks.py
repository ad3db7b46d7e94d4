"""The same training on 1, 2 and 4 ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load
from torch_ranks import (
    RankPool,
    train,
    train_then_alone,
    train_unequal,
    train_until_aborted,
    train_with_nan_on,
    use_collectives,
)

DIGITS: dict[str, Any] = {
    "name": "digits",
    "model": {"name": "resnet8", "args": {"norm": "group", "width": 8}},
    "data": {"source": "digits"},
    "global_batch_size": 32,
    "epochs": 2,
    "optimizer": {"lr": 0.02},
    "device": os.environ.get("MLRUN_TEST_DEVICE", "cpu"),
    "threads": 1,
}


@pytest.fixture(scope="module")
def alone(ranks: RankPool) -> dict[str, Any]:
    (result,) = ranks.run(1, train, DIGITS, 50)
    return result


def difference(a: bytes, b: bytes) -> float:
    """Largest difference between two models' parameters, relative to each tensor's largest value."""
    first, second = load(a), load(b)
    return max(np.abs(first[k] - second[k]).max() / np.abs(first[k]).max() for k in first)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_loss_and_parameters_dont_depend_on_the_number_of_ranks(
    ranks: RankPool, alone: dict[str, Any], size: int, overlap: bool
) -> None:
    spec = {**DIGITS, "allreduce": {"overlap": overlap, "bucket_mb": 0.05}}
    results = ranks.run(size, train, spec, 50)
    assert alone["losses"][-1] < alone["losses"][0] / 2
    for result in results:
        np.testing.assert_allclose(result["losses"], alone["losses"], rtol=1e-4, atol=1e-5)
        assert difference(alone["model"], result["model"]) < 1e-4
    assert len({r["hash"] for r in results}) == 1


def test_two_runs_give_the_same_bits(ranks: RankPool) -> None:
    first, second = (ranks.run(2, train, DIGITS, 10) for _ in range(2))
    assert first[0]["hash"] == second[0]["hash"] == second[1]["hash"]


def test_uneven_batches_and_ranks_without_samples_change_nothing(ranks: RankPool) -> None:
    """18 samples in batches of 8 leave 2 for the last step, so that two of four ranks have none."""
    spec = {**DIGITS, "global_batch_size": 8, "epochs": 1, "data": {"source": "digits", "val_split": 0.99}}
    (one,) = ranks.run(1, train, spec, 3)
    four = ranks.run(4, train, spec, 3)
    assert [sum(r["samples"][step] for r in four) for step in range(3)] == one["samples"]
    assert [r["samples"][2] for r in four] == [0, 1, 0, 1]
    for result in four:
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-4)
        assert difference(one["model"], result["model"]) < 1e-4


def _images(folder: Path, bad: int) -> dict[str, Any]:
    """12 images, and ``bad`` that can't be decoded, without augmentation."""
    draw = np.random.default_rng(0)
    for number in range(12):
        image = folder / "ab"[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(image)
    for number in range(bad):
        whole = (folder / "a" / f"{2 * number}.png").read_bytes()
        (folder / "b" / f"cut{number}.png").write_bytes(whole[: len(whole) // 2])
    data = {"source": "imagefolder", "path": str(folder), "image_size": 16, "augment": False, "workers": 0}
    return {**DIGITS, "data": {**data, "on_bad_file": "skip"}, "global_batch_size": 12 + bad}


def test_files_left_out_weigh_nothing(ranks: RankPool, tmp_path: Path) -> None:
    """A step is the mean over the images that can be read, whoever got those that can't."""
    spec = _images(tmp_path / "bad", bad=5)
    (clean,) = ranks.run(1, train, _images(tmp_path / "clean", bad=0), 3)
    for size in (1, 4):
        for result in ranks.run(size, train, spec, 3):
            np.testing.assert_allclose(result["losses"], clean["losses"], rtol=1e-4)
            assert difference(clean["model"], result["model"]) < 1e-4


def test_a_rank_whose_only_sample_is_left_out_takes_part(ranks: RankPool, tmp_path: Path) -> None:
    spec = {**_images(tmp_path, bad=5), "global_batch_size": 4, "data": {**_images(tmp_path, 5)["data"]}}
    spec["data"]["val_split"] = 0.3
    (one,) = ranks.run(1, train, spec, 6)
    four = ranks.run(4, train, spec, 6)
    assert any(0 in result["samples"][:2] for result in four)
    for result in four:
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-4)
        assert result["evaluation"].samples == one["evaluation"].samples < 5
        np.testing.assert_allclose(
            result["evaluation"].metrics["loss"], one["evaluation"].metrics["loss"], rtol=1e-4
        )


def test_each_rank_may_have_its_own_batch_size(ranks: RankPool) -> None:
    results = ranks.run(2, train_unequal, DIGITS, 5)
    (one,) = ranks.run(1, train, {**DIGITS, "global_batch_size": 24}, 5)
    assert [r["samples"][0] for r in results] == [8, 16]
    np.testing.assert_allclose(results[1]["losses"], one["losses"], rtol=1e-4)


def test_accumulation_equals_one_big_batch(ranks: RankPool) -> None:
    spec = {**DIGITS, "grad_accumulation": 4}
    (one,) = ranks.run(1, train, DIGITS, 5)
    results = ranks.run(2, train, spec, 5)
    np.testing.assert_allclose(results[0]["losses"], one["losses"], rtol=1e-4)
    assert difference(one["model"], results[0]["model"]) < 1e-4


def test_batchnorm_statistics_agree_before_saving(ranks: RankPool) -> None:
    spec = {**DIGITS, "model": {"name": "resnet8", "args": {"norm": "batch", "width": 8}}}
    results = ranks.run(2, train, spec, 5)
    assert len({r["hash"] for r in results}) == 1
    assert len({r["evaluation"].metrics["accuracy"] for r in results}) == 1
    running = load(results[0]["model"])["1.running_mean"]
    assert np.abs(running).max() > 0


def test_buckets_travel_while_the_backward_pass_runs(ranks: RankPool) -> None:
    """From step 2 on; where ranks run out of step on a busy machine, not in each one."""
    model = {"name": "mlp", "args": {"hidden": [768] * 8}}
    spec = {**DIGITS, "model": model, "allreduce": {"bucket_mb": 2}}
    for result in ranks.run(2, train, spec, 10):
        overlapped = 0
        for spans in result["spans"][2:]:
            (backward_end,) = [end for name, _, end in spans if name == "backward"]
            buckets = [(start, end) for name, start, end in spans if name.startswith("all_reduce:")]
            assert len(buckets) > 3
            assert buckets == sorted(buckets)
            overlapped += buckets[0][1] <= backward_end
        assert overlapped >= 4


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_half_precision_on_the_wire_still_learns_alike(ranks: RankPool, wire: str) -> None:
    results = ranks.run(2, train, {**DIGITS, "allreduce": {"wire_dtype": wire}}, 10)
    (one,) = ranks.run(1, train, DIGITS, 10)
    assert results[0]["hash"] == results[1]["hash"]
    np.testing.assert_allclose(results[0]["losses"], one["losses"], rtol=0.05)


def test_a_bad_rank_stops_the_update_on_all_and_is_named(ranks: RankPool) -> None:
    outcomes = ranks.run(2, train_with_nan_on, 1, DIGITS)
    assert [o["applied"] for o in outcomes] == [[True, False], [True, False]]
    assert outcomes[0]["culprit"] is None
    assert outcomes[1]["culprit"] == "loss"
    assert [o["unchanged"] for o in outcomes] == [True, True]


def test_a_lost_rank_comes_out_of_backward_as_the_engines_message(ranks: RankPool) -> None:
    outcomes = ranks.outcomes(2, train_until_aborted, DIGITS)
    for worked, text in outcomes:
        assert not worked
        assert "the test pulled the plug" in text


def test_rebinding_to_fewer_ranks_goes_on_alike(ranks: RankPool) -> None:
    results = ranks.run(2, train_then_alone, DIGITS)
    (one,) = ranks.run(1, train, DIGITS, 6)
    np.testing.assert_allclose(results[0], one["losses"], rtol=1e-4)


def test_collectives_of_torch_distributed(ranks: RankPool) -> None:
    for rank, found in enumerate(ranks.run(3, use_collectives)):
        assert found["sum"] == [6.0, 6.0]
        assert found["max"] == 3
        assert found["broadcast"] == "complex64 (1+2j)"
        assert found["gathered"] == [[1.0], [2.0], [3.0]]
        assert found["objects"] == ["rank 0", "rank 1", "rank 2"]
        assert found["reduce_scatter"] == 3.0 * rank
        assert found["all_to_all"] == [float(rank), 10.0 + rank, 20.0 + rank]
        assert found["from_left"] == float((rank - 1) % 3)
        assert found["strided"] == [6.0, 6.0]
        assert found["gathered_on_1"] == ([0.0, 1.0, 2.0] if rank == 1 else None)
        assert found["scattered"] == 100.0 + rank
