"""The short form of the soak: each fault once, and as many phases without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_short_soak() -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0", "--phase-seconds", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for fault in ("None", "kill", "stop", "cut", "garbage"):
        assert f"fault {fault} " in ended.stdout
