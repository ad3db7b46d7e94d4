"""Which samples a rank sees, and what it gets for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mlrun.backends.data import data_missing
from mlrun.backends.torch.data.sources import make_source
from mlrun.data.feed import Feed
from mlrun.data.sampler import Sampler, cut, even_shares
from mlrun.errors import RequestError, RunFailedError
from mlrun.spec import JobSpec

CPU = torch.device("cpu")


def spec(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "test", "model": {"name": "mlp"}, "batch_size": 4, "steps": 1, "device": "cpu", **changes}
    )


samplers = st.builds(
    Sampler,
    samples=st.integers(1, 200),
    shares=st.lists(st.integers(1, 20), min_size=1, max_size=6).map(tuple),
    seed=st.integers(0, 3),
)


@given(samplers, st.integers(0, 2))
def test_every_sample_comes_once_an_epoch(sampler: Sampler, epoch: int) -> None:
    steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
    seen = [i for s in steps for rank in range(len(sampler.shares)) for i in sampler.part(s, rank)]
    assert sorted(seen) == list(range(sampler.samples))
    assert {sampler.epoch(s) for s in steps} == {epoch}


@given(samplers, st.integers(0, 50), st.integers(1, 5))
def test_parts_are_consecutive_and_no_larger_than_the_shares(sampler: Sampler, step: int, micro: int) -> None:
    parts = [sampler.part(step, rank) for rank in range(len(sampler.shares))]
    assert np.concatenate(parts).tolist() == sampler.batch(step).tolist()
    for rank, (part, share) in enumerate(zip(parts, sampler.shares, strict=True)):
        assert len(part) <= share
        pieces = sampler.micro_batches(step, rank, micro)
        assert all(0 < len(piece) <= -(-share // micro) for piece in pieces)
        assert [i for piece in pieces for i in piece] == part.tolist()


@given(samplers, st.integers(1, 6), st.integers(0, 50))
def test_the_same_global_batch_whatever_the_ranks(sampler: Sampler, ranks: int, step: int) -> None:
    other = Sampler(sampler.samples, even_shares(sampler.global_batch, ranks), sampler.seed)
    assert other.batch(step).tolist() == sampler.batch(step).tolist()


@given(st.integers(0, 100), st.integers(1, 8))
def test_evaluation_sees_every_sample_once(samples: int, ranks: int) -> None:
    assert [i for rank in range(ranks) for i in cut(samples, ranks, rank)] == list(range(samples))


def test_epochs_differ_and_seeds_differ() -> None:
    sampler = Sampler(100, (10,), seed=1)
    first = [i for s in range(10) for i in sampler.batch(s)]
    assert first != [i for s in range(10, 20) for i in sampler.batch(s)]
    assert first != [i for s in range(10) for i in Sampler(100, (10,), seed=2).batch(s)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for number in range(5):
            pixels = rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def images(folder: Path, **data: Any) -> JobSpec:
    return spec(data={"source": "imagefolder", "path": str(folder), "image_size": 16, "workers": 0, **data})


def test_imagefolder_decodes_and_augments_by_epoch_and_sample_alone(folder: Path) -> None:
    split = make_source(images(folder, val_split=0.2), CPU)
    assert (len(split.train), split.classes, split.sample_shape) == (8, 2, (3, 16, 16))
    together = split.train.fetch(np.array([3, 1]), epoch=1)
    apart = split.train.fetch(np.array([1]), epoch=1)
    assert torch.equal(together.inputs[1], apart.inputs[0])
    assert not torch.equal(apart.inputs[0], split.train.fetch(np.array([1]), epoch=2).inputs[0])


def test_loader_workers_give_what_this_process_gives(folder: Path) -> None:
    sampler = Sampler(10, (4,), seed=0)
    feeds = []
    for workers in (0, 1):
        source = make_source(images(folder, workers=workers), CPU)
        feed = Feed(source.train, sampler, rank=0, accumulation=2, place=lambda batch: batch.to(CPU))
        feeds.append([b for step in (0, 1, 2, 7) for b in feed.take(step)])
        source.close()
    for here, there in zip(*feeds, strict=True):
        assert torch.equal(here.inputs, there.inputs)
        assert torch.equal(here.targets, there.targets)


def test_a_damaged_image_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    broken = tmp_path / "cat" / "broken.png"
    broken.write_bytes(b"not an image")
    split = make_source(images(tmp_path), CPU).train
    with pytest.raises(RunFailedError, match=r"broken\.png"):
        split.fetch(np.array([0]), 0)


def test_a_class_without_images_is_named(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "images")
    (tmp_path / "images" / "emu").mkdir()
    with pytest.raises(RequestError, match="images/emu has no images"):
        make_source(images(tmp_path / "images"), CPU)


def test_fingerprint_follows_content(folder: Path) -> None:
    first = make_source(images(folder), CPU).fingerprint
    assert first == make_source(images(folder), CPU).fingerprint
    assert first != make_source(images(folder, val_split=0.5), CPU).fingerprint


def test_missing_folder_is_told_without_opening_anything(tmp_path: Path) -> None:
    missing = images(tmp_path / "nowhere")
    assert "nowhere" in str(data_missing(missing))
    assert data_missing(spec()) is None
    with pytest.raises(RequestError, match="nowhere"):
        make_source(missing, CPU)


def test_a_dataset_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def pairs(count):\n"
        "    return [(torch.full((3,), float(i)) + torch.rand(3), i % 2) for i in range(count)]\n"
    )
    own = {"source": "mine:pairs", "args": {"count": 10}, "val_split": 0.3, "classes": 2, "workers": 0}
    source = make_source(spec(data=own, workdir=str(tmp_path)), CPU)
    assert source.validation is not None
    assert (len(source.train), len(source.validation), source.sample_shape) == (7, 3, (3,))


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(RequestError, match="imagenet"):
        make_source(spec(data={"source": "imagenet"}), CPU)
