"""Data behind a URL: what fsspec opens, through the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlrun.backends.torch.data.sources import make_source
from mlrun.data.folder import DataError
from mlrun.data.own import own_data
from mlrun.data.url import UrlFolder
from mlrun.errors import RequestError
from mlrun.spec import JobSpec
from tests.data.photographs import write_photographs

CPU = torch.device("cpu")


def spec(**data: Any) -> JobSpec:
    described = {"source": "imagefolder", "image_size": 16, "workers": 0, **data}
    return JobSpec.model_validate(
        {"name": "url", "model": {"name": "mlp"}, "batch_size": 4, "steps": 1, "data": described}
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_url_gives_what_the_folder_gives_and_then_the_cache(tmp_path: Path) -> None:
    write_photographs(tmp_path / "bucket" / "photographs", 20)
    here = make_source(spec(path=str(tmp_path / "bucket" / "photographs")), CPU)
    for fetched in (20, 0):
        there = make_source(spec(location=f"file://{tmp_path}/bucket", path="photographs"), CPU)
        assert there.fingerprint == here.fingerprint
        chosen = np.arange(20)
        assert torch.equal(there.train.fetch(chosen, 0).inputs, here.train.fetch(chosen, 0).inputs)
        counts = own_data.counts()
        assert counts is not None
        assert counts.files_fetched == fetched


def test_one_file_may_be_the_url(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\ngood,1\n")
    folder = UrlFolder(f"file://{tmp_path}/reviews.csv", None, "csv")
    assert folder.listing.names == ["reviews.csv"]
    assert folder.read("reviews.csv") == b"text,label\ngood,1\n"
    assert folder.where("reviews.csv") == f"file://{tmp_path}/reviews.csv"


def test_what_is_not_there_or_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="/empty has no files of imagefolder"):
        make_source(spec(location=f"file://{tmp_path}/empty"), CPU)
    with pytest.raises(RequestError, match=r"gopher://hole can't be read: .*gopher"):
        make_source(spec(location="gopher://hole"), CPU)


def test_a_shorter_file_than_was_listed_is_named(tmp_path: Path) -> None:
    write_photographs(tmp_path, 2)
    folder = UrlFolder(f"file://{tmp_path}", None, "imagefolder")
    name = folder.listing.names[0]
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:100])
    with pytest.raises(DataError, match=rf"{name} is truncated: 100 of {len(whole):,} bytes came"):
        folder.read(name)
