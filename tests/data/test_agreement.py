"""Do all hosts have the same data? What differs is one sentence, before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mlrun.data.look import look
from mlrun.errors import RefusedError
from mlrun.launch.data import agree_on_data
from mlrun.protocol import LookAtData


def host(root: Path, name: str) -> Path:
    for image in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        path = root / name / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root / name


def refusal(root: Path, *names: str) -> str:
    seen = {name: look(LookAtData("imagefolder", "images", str(root / name))) for name in names}
    with pytest.raises(RefusedError) as error:
        agree_on_data(seen)
    return error.value.message


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    for name in ("mac1", "mac2", "mac3"):
        host(tmp_path, name)
    return tmp_path


def test_hosts_with_the_same_files_agree(hosts: Path) -> None:
    names = ("mac1", "mac2", "mac3")
    agree_on_data({name: look(LookAtData("imagefolder", "images", str(hosts / name))) for name in names})


def test_a_share_that_is_not_mounted(hosts: Path) -> None:
    shutil.rmtree(hosts / "mac3" / "images")
    said = refusal(hosts, "mac1", "mac2", "mac3")
    place = hosts / "mac3" / "images"
    assert said == f"mac3: 0 files in {place}, mac1 has 3: is the share mounted for this user?"


def test_a_host_that_lacks_a_file(hosts: Path) -> None:
    (hosts / "mac1" / "images" / "cat" / "2.jpg").unlink()
    said = refusal(hosts, "mac1", "mac2", "mac3")
    assert said == f"mac1: 1 files of class cat in {hosts / 'mac1' / 'images'}, mac2 has 2"


def test_a_host_without_a_class_and_one_with_other_names(hosts: Path) -> None:
    shutil.rmtree(hosts / "mac2" / "images" / "dog")
    (hosts / "mac3" / "images" / "dog" / "1.jpg").rename(hosts / "mac3" / "images" / "dog" / "x.jpg")
    host(hosts, "mac4")
    said = refusal(hosts, "mac1", "mac2", "mac3", "mac4").splitlines()
    assert said[0] == f"mac2: no class dog in {hosts / 'mac2' / 'images'}, mac1 has 2 classes"
    assert said[1].startswith("mac3: the files in ")
    assert "other names than those of mac1" in said[1]


def test_nobody_has_any(tmp_path: Path) -> None:
    (tmp_path / "mac1").mkdir()
    assert "no host has any files" in refusal(tmp_path, "mac1", "mac2")
