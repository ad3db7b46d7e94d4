from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlrun import cli

GOOD = "name: job\nmodel: {name: resnet18}\nbatch_size: 8\nsteps: 10\n"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def mlrun(monkeypatch, capsys) -> Callable[..., Done]:
    """Runs the command's entry point with these arguments, in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["mlrun", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        out, err = capsys.readouterr()
        return Done(int(exit_info.value.code or 0), out, err)

    return run


@pytest.fixture
def good(tmp_path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def write(tmp_path) -> Callable[[str], Path]:
    """Writes a spec and gives its path."""

    def make(text: str, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return make
