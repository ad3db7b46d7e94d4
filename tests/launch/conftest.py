"""Real runs through the real command line, in a folder of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

TIMEOUT_S = 120


@dataclass
class Run:
    """One ``mlrun`` process and what it printed with ``--console json``."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]]

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Read events up to the first of ``kind`` with these fields; a callable tests a field."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["type"] == kind and all(
                wanted(event[name]) if callable(wanted) else event[name] == wanted
                for name, wanted in fields.items()
            ):
                return event
        pytest.fail(f"no {kind} {fields}; the last events: {self.events[-5:]}")

    def finish(self) -> int:
        """Read the rest and return the exit code."""
        assert self.process.stdout is not None
        self.events += [json.loads(line) for line in self.process.stdout]
        return self.process.wait(TIMEOUT_S)

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def summary(self) -> dict[str, Any]:
        """The last line, which is also summary.json."""
        last = self.events[-1]
        assert last["type"] == "SummaryEvent"
        summary: dict[str, Any] = last["summary"]
        assert json.loads((self.folder / "summary.json").read_text()) == summary
        return summary

    @property
    def folder(self) -> Path:
        return Path(self.events[0]["detail"]["run_dir"])

    def children(self) -> list[psutil.Process]:
        """Agent and workers, which the launcher's death must not leave behind."""
        return psutil.Process(self.process.pid).children(recursive=True)


Mlrun = Callable[..., Run]


@pytest.fixture
def mlrun(tmp_path: Path) -> Iterator[Mlrun]:
    """Start ``mlrun COMMAND ARGS...`` in ``tmp_path``, where module ``trouble`` is importable."""
    shutil.copy(Path(__file__).with_name("trouble.py"), tmp_path)
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> Run:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlrun.cli", *arguments, "--console", "json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Run(process, [])

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., str]:
    """Write a small spec (digits on ``trouble``'s linear layer); keyword arguments replace its keys."""

    def write(**keys: Any) -> str:
        trouble = keys.pop("trouble", {})
        content = {
            "name": "small",
            "model": {"name": "trouble:build", "args": trouble},
            "data": {"source": "digits"},
            "global_batch_size": 32,
            "steps": 8,
            "threads": 1,
            "device": "cpu",
            "log_every": 1,
            "optimizer": {"lr": 0.05},
            **keys,
        }
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(content))
        return "job.yaml"

    return write
