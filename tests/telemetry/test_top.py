"""``mlrun top`` on machines made of recorded tools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

TIMEOUT_S = 60


def top(*options: str, tools: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "mlrun.cli", "top", *options]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_top_shows_a_mac_until_it_is_interrupted(mac):
    with top("--console", "json", tools=mac) as process:
        assert process.stdout is not None
        told = next(e for e in map(json.loads, process.stdout) if e.get("gpu_percent") and e["gpu_watts"])
        assert (told["host"], told["gpu_percent"], told["chip"]) == ("localhost", 93, "Apple M2 Max")
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(TIMEOUT_S) == 0
    assert started
    assert psutil.wait_procs(started, timeout=10)[1] == []


def test_top_says_which_host_is_out_of_reach(tmp_path, tool, tool_folder):
    tool(
        "ssh", "import sys\nsys.exit('ssh: Could not resolve hostname mac9: nodename nor servname provided')"
    )
    with top("--hosts", "mac9", "--console", "plain", tools=tool_folder) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "mac9" in out
    assert "no host tells anything" in err
