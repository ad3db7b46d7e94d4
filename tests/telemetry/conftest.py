"""Macs made of recorded tools."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_name("recorded") / "tool.py"
TOOLS = ("ioreg", "notifyutil", "pmset", "macmon")


@pytest.fixture
def tool_folder(tmp_path: Path) -> Path:
    """An empty folder for tools that are to be found."""
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


@pytest.fixture
def tool(tool_folder: Path) -> Callable[[str, str], None]:
    """``tool(name, program)`` puts a tool into ``tool_folder``."""

    def write(name: str, program: str) -> None:
        path = tool_folder / name
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)

    return write


@pytest.fixture
def mac(tool: Callable[[str, str], None], tool_folder: Path) -> Path:
    """The folder with every recorded tool of a Mac that is busy, hot, on battery and saving energy."""
    for name in TOOLS:
        tool(name, RECORDED.read_text())
    return tool_folder
