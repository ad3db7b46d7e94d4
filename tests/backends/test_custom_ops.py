"""Custom operations: built, loaded, offered to model code, or refused in the compiler's words."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path

import pytest

from mlrun import ops
from mlrun.backends.custom_ops import load_custom_ops
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(folder: Path, *files: str) -> None:
    """As a framework whose libraries are plain C would."""
    fields = {
        "name": "ops",
        "model": {"name": "mlp"},
        "batch_size": 1,
        "steps": 1,
        "workdir": str(folder),
        "custom_ops": list(files),
    }
    load_custom_ops(
        JobSpec.model_validate(fields), lambda: ["-std=c++17"], lambda path: ctypes.CDLL(str(path))
    )


def test_a_source_is_built_once_and_its_library_offered(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "two.cc"
    source.write_text('extern "C" int number() { return 2; }')
    load(tmp_path, "two.cc")
    assert ops.library("two").number() == 2
    (built,) = cache.rglob("two.so")
    before = built.stat().st_ino
    load(tmp_path, "two.cc")
    assert [path.stat().st_ino for path in cache.rglob("two.so")] == [before]
    shutil.copy(built, tmp_path / "ready.so")
    load(tmp_path, "ready.so")
    assert ops.library("ready").number() == 2
    source.write_text('extern "C" int number() { return 3; }')
    load(tmp_path, "two.cc")
    assert ops.library("two").number() == 3


def test_a_python_file_registers_operations_itself(tmp_path: Path) -> None:
    (tmp_path / "own_ops.py").write_text("def double(x):\n    return 2 * x\n")
    load(tmp_path, "own_ops.py")
    assert ops.library("own_ops").double(4) == 8


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.cc", "int number() { return tow; }", "broken.cc:1:23: error: "),
        ("missing.cc", None, "there is no file"),
        ("notes.txt", "", "neither source nor library"),
        ("raising.py", "raise ValueError('no')", "raised ValueError: no"),
        ("empty.so", "", "can't be loaded"),
    ],
)
def test_what_cant_be_loaded_says_why(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(RequestError) as refused:
        load(tmp_path, name)
    assert said in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac builds it")
def test_metal_is_left_to_macs() -> None:
    with pytest.raises(RequestError, match="only a Mac builds"):
        load(EXAMPLE, "zero_out_metal.mm")


def test_operations_that_arent_loaded_are_asked_for_by_their_file() -> None:
    with pytest.raises(RequestError) as refused:
        ops.library("never_seen")
    assert "never_seen.cc" in str(refused.value)
