"""A host's code folder comes to exactly what was listed, or says what is wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mlrun.agent.code import CodeError, CodeFolder, Entry, Manifest
from mlrun.launch import ship


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('one')\n")
    (folder / "pkg" / "a b.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "alias.py").symlink_to("train.py")
    return folder


def bring(here: Path, there: Path) -> list[str]:
    """Bring ``there`` up to date; the paths that had to travel."""
    manifest, folder = ship.manifest(here), CodeFolder(there)
    with folder.lock():
        lacking = folder.lacking(manifest)
        folder.update(manifest, packed(here, manifest, lacking))
    return lacking


def packed(here: Path, manifest: Manifest, lacking: list[str]) -> io.BytesIO:
    tar = io.BytesIO()
    ship.pack(here, [entry for entry in manifest.entries if entry.path in lacking], tar)
    tar.seek(0)
    return tar


def test_only_what_is_lacking_travels_and_what_has_gone_is_removed(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert bring(here, there) == ["alias.py", "pkg/a b.py", "run.sh", "train.py"]
    (there / "results.csv").write_text("mine\n")
    assert bring(here, there) == []
    (here / "train.py").write_text("print('two')\n")
    (here / "run.sh").unlink()
    (there / "pkg" / "a b.py").write_text("x = 2\n")
    assert bring(here, there) == ["pkg/a b.py", "train.py"]
    assert (there / "train.py").read_text() == "print('two')\n"
    assert (there / "pkg" / "a b.py").read_text() == "x = 1\n"
    assert (there / "alias.py").readlink() == Path("train.py")
    assert (there / "results.csv").exists()
    assert not (there / "run.sh").exists()


def test_executable_bits_and_kinds_follow(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    bring(here, there)
    assert (there / "run.sh").stat().st_mode & 0o111
    (here / "run.sh").chmod(0o644)
    (here / "alias.py").unlink()
    (here / "alias.py").mkdir()
    (here / "alias.py" / "inner.py").write_text("")
    (here / "pkg" / "a b.py").unlink()
    (here / "pkg").rmdir()
    (here / "pkg").write_text("now a file\n")
    bring(here, there)
    assert not (there / "run.sh").stat().st_mode & 0o111
    assert (there / "alias.py" / "inner.py").is_file()
    assert (there / "pkg").read_text() == "now a file\n"


def test_a_file_that_changes_on_the_way_is_named(here: Path, tmp_path: Path) -> None:
    manifest = ship.manifest(here)
    (here / "train.py").write_text("print('other')\n")
    folder = CodeFolder(tmp_path / "there")
    with folder.lock(), pytest.raises(CodeError, match=r"train\.py .* didn't arrive as it was listed"):
        folder.update(manifest, packed(here, manifest, folder.lacking(manifest)))


def test_a_cut_transfer_is_an_error_and_the_next_one_heals(here: Path, tmp_path: Path) -> None:
    (here / "big.bin").write_bytes(bytes(range(256)) * 4096)
    manifest, there = ship.manifest(here), tmp_path / "there"
    folder = CodeFolder(there)
    whole = packed(here, manifest, folder.lacking(manifest)).getvalue()
    with folder.lock(), pytest.raises(CodeError):
        folder.update(manifest, io.BytesIO(whole[: len(whole) // 2]))
    bring(here, there)
    assert folder.lacking(manifest) == []


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    text = json.dumps([{"path": path, "sha256": "0", "size": 0}])
    with pytest.raises(CodeError, match="leaves the folder"):
        Manifest.from_json(text)


def test_links_that_leave_the_folder_are_refused() -> None:
    text = Manifest((Entry("a/link", "0", 0, link="../../evil"),)).to_json()
    with pytest.raises(CodeError, match="leaves the folder"):
        Manifest.from_json(text)


def test_files_that_were_not_listed_are_refused(here: Path, tmp_path: Path) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        writer.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    tar.seek(0)
    folder = CodeFolder(tmp_path / "there")
    with folder.lock(), pytest.raises(CodeError, match="wasn't listed"):
        folder.update(ship.manifest(here), tar)
    assert not (tmp_path / "evil").exists()


def test_a_link_in_the_way_is_not_followed(here: Path, tmp_path: Path) -> None:
    there, outside = tmp_path / "there", tmp_path / "outside"
    outside.mkdir()
    there.mkdir()
    (there / "pkg").symlink_to(outside)
    bring(here, there)
    assert list(outside.iterdir()) == []
    assert (there / "pkg" / "a b.py").read_text() == "x = 1\n"


def test_the_receiving_end_imports_the_standard_library_only() -> None:
    heavy = {"pydantic", "numpy", "yaml", "pathspec"}
    code = f"import sys, mlrun.agent.code; print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
