"""What a project needs on hosts, as the tools of its author wrote it down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlrun.errors import RequestError
from mlrun.fleet.requirements import needed

UV_LOCK = """
version = 1
requires-python = ">=3.10"

[[package]]
name = "project"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "timm", extra = ["fast"] },
    { name = "exceptiongroup", marker = "python_full_version < '3.11'" },
    { name = "helper" },
]

[[package]]
name = "helper"
version = "0.1"
source = { editable = "helper" }

[[package]]
name = "timm"
version = "1.0.9"
source = { registry = "https://index.example/simple" }
dependencies = [{ name = "huggingface-hub" }, { name = "forked" }]

[[package]]
name = "exceptiongroup"
version = "1.3.0"
source = { registry = "https://index.example/simple" }

[[package]]
name = "huggingface-hub"
version = "1.2.0+local"
source = { registry = "https://index.example/simple" }

[[package]]
name = "forked"
version = "1.0"
source = { registry = "https://index.example/simple" }

[[package]]
name = "forked"
version = "2.0"
source = { registry = "https://index.example/simple" }
"""
PYLOCK = """
lock-version = "1.0"
created-by = "a tool"

[[packages]]
name = "timm"
version = "1.0.9"

[[packages]]
name = "exceptiongroup"
version = "1.3.0"
marker = "python_full_version < '3.11'"

[[packages]]
name = "project"
directory = { path = "." }
"""
MARKED = 'exceptiongroup==1.3.0; python_full_version < "3.11"'


def test_uv_lock_gives_what_is_asked_for_and_pins_the_rest(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(UV_LOCK)
    found = needed(tmp_path)
    assert [str(each) for each in found.requirements] == ["timm[fast]==1.0.9", MARKED]
    assert "huggingface-hub==1.2.0" in map(str, found.pins)
    assert not [each for each in found.pins if each.name == "forked"]


def test_pylock_names_everything(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK)
    (tmp_path / "requirements.txt").write_text("other==3\n")
    assert [str(each) for each in needed(tmp_path).requirements] == ["timm==1.0.9", MARKED]


def test_requirements_count_where_nothing_is_locked(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# mine\ntimm==1.0.9  # new\n--hash=sha256:0\n")
    assert [str(each) for each in needed(tmp_path).requirements] == ["timm==1.0.9"]
    assert needed(tmp_path / "nowhere").requirements == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uv.lock", "[[package]\n", "not a lock file"),
        ("pylock.toml", '[[packages]]\nname = "own"\nvcs = { type = "git" }\n', "own comes from no index"),
        ("requirements.txt", "timm==1\n-r more.txt\n", r"requirements.txt:2: '-r more.txt' isn't"),
    ],
)
def test_what_can_not_be_installed_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=message):
        needed(tmp_path)


def test_another_version_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text('[[packages]]\nname = "numpy"\nversion = "0.9"\n')
    argv = [sys.executable, "-m", "mlrun.cli", "hosts", "install", "--hosts", "mac1", "--framework", "sim"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "pylock.toml asks for numpy==0.9, and here is " in done.stderr
