"""A launch from a place that gives it no standard streams, such as a cron job or ``>&-``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 120
SPEC = "{name: d, model: {name: mlp}, data: {source: digits}, global_batch_size: 64, steps: 2}\n"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_dont_matter(tmp_path: Path, closed: str) -> None:
    (tmp_path / "d.yaml").write_text(SPEC)
    command = f'exec "$0" -m mlrun.cli launch d.yaml -np 1 {closed}'
    subprocess.run(["sh", "-c", command, sys.executable], cwd=tmp_path, timeout=TIMEOUT_S, check=True)

    [summary] = tmp_path.glob("runs/*/summary.json")
    assert json.loads(summary.read_text())["status"] == "done"
    for line in (summary.parent / "events.jsonl").read_text().splitlines():
        assert json.loads(line)
