"""Which files of a work folder travel."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from mlrun.errors import RefusedError
from mlrun.launch import ship


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {path}\n")


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_what_git_tracks_or_would_track(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(
        tmp_path,
        "train.py",
        "pkg/a b.py",
        "pkg/ünï.py",
        "gone.py",
        "build/x.o",
        "runs/r/log",
        "new.py",
        ".gitignore",
    )
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "add", "train.py", "pkg", "gone.py")
    git(tmp_path, "commit", "-m", "all")
    (tmp_path / "gone.py").unlink()
    assert ship.select(tmp_path) == {"train.py", "pkg/a b.py", "pkg/ünï.py", "new.py", ".gitignore"}


def test_a_subfolder_of_a_repository_is_a_work_folder(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, "other.py", "job/train.py")
    assert ship.select(tmp_path / "job") == {"train.py"}


def test_repositories_within_travel_too(tmp_path: Path) -> None:
    outer, lib = tmp_path / "outer", tmp_path / "lib"
    for folder in (outer, lib):
        folder.mkdir()
        git(folder, "init")
    write(lib, "lib.py")
    git(lib, "add", "lib.py")
    git(lib, "commit", "-m", "lib")
    git(outer, "submodule", "add", str(lib), "sub")
    nested = outer / "nested"
    nested.mkdir()
    git(nested, "init")
    write(nested, "n.py")
    assert ship.select(outer) == {".gitmodules", "sub/lib.py", "nested/n.py"}


def test_without_git_everything_but_the_ignored(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        "__pycache__/train.pyc",
        "a/__pycache__/b.pyc",
        "a/b.py",
        "data/big.bin",
        "runs/1/log",
    )
    write(tmp_path, "out/model.bin", "a/runs/kept.py")
    (tmp_path / ".gitignore").write_text("out/\n")
    (tmp_path / ".mlrunignore").write_text("# data is on each host\ndata/\n")
    assert ship.select(tmp_path) == {"train.py", "a/b.py", "a/runs/kept.py", ".gitignore", ".mlrunignore"}


def test_rules_leave_out_what_git_tracks_and_ask_for_what_it_ignores(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, "train.py", "notes/a.md", "tokens/vocab.txt", "tokens/huge.bin")
    (tmp_path / ".gitignore").write_text("tokens/\n")
    git(tmp_path, "add", ".")
    (tmp_path / ".mlrunignore").write_text("notes/\n")
    assert ship.select(tmp_path, ["!tokens/vocab.txt"]) == {
        "train.py",
        "tokens/vocab.txt",
        ".gitignore",
        ".mlrunignore",
    }


def test_environments_never_travel(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "conda/conda-meta/history", "conda/bin/python")
    venv.create(tmp_path / "my env", symlinks=True)
    assert ship.select(tmp_path) == {"train.py"}
    git(tmp_path, "init")
    assert ship.select(tmp_path, ["!conda/**"]) == {"train.py"}


def test_the_hash_is_of_names_contents_and_executable_bits(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.sh")
    first = ship.manifest(tmp_path)
    assert ship.manifest(tmp_path).code_hash == first.code_hash
    (tmp_path / "a.py").touch()
    assert ship.manifest(tmp_path).code_hash == first.code_hash
    (tmp_path / "b.sh").chmod(0o755)
    executable = ship.manifest(tmp_path).code_hash
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({first.code_hash, executable, ship.manifest(tmp_path).code_hash}) == 3


def test_too_much_is_refused_with_the_largest_folders_named(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    for name, size in [
        ("images/train/1.bin", 400),
        ("images/val/1.bin", 90),
        ("weights.bin", 60),
        ("a/b.bin", 1),
    ]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            opened.truncate(size * 10**6)
    with pytest.raises(
        RefusedError, match=r"551 MB, more than the 500 MB .* images/ 490 MB, weights.bin 60 MB, a/ 1 MB"
    ):
        ship.manifest(tmp_path)
    assert ship.manifest(tmp_path, ["images/"]).entries


def test_links_travel_as_links_unless_they_leave_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "pkg/real.py", "data/x")
    (tmp_path / "pkg" / "alias.py").symlink_to("real.py")
    (tmp_path / "d").symlink_to("data")
    links = {entry.path: entry.link for entry in ship.manifest(tmp_path).entries}
    assert links == {"pkg/real.py": None, "data/x": None, "pkg/alias.py": "real.py", "d": "data"}
    (tmp_path / "pkg" / "away").symlink_to("../../elsewhere")
    with pytest.raises(RefusedError, match=r"away is a link to \.\./\.\./elsewhere, outside"):
        ship.manifest(tmp_path)
