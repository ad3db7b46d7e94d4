"""Telemetry of a real agent, on machines made of recorded tools."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mlrun.protocol import Bye, Hello, TelemetryEvent
from mlrun.wire import decode, encode

RECORDED = Path(__file__).with_name("recorded") / "tool.py"
TIMEOUT_S = 60.0


class Host:
    """An agent that finds its tools in one folder first."""

    def __init__(self, tools: Path) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "mlrun.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        )
        self._send(Hello("run-1", "mac-1", 30.0))

    def until(self, wanted: Callable[[TelemetryEvent], bool]) -> TelemetryEvent:
        """The first telemetry that is ``wanted``."""
        assert self.child.stdout is not None
        deadline = time.monotonic() + TIMEOUT_S
        told = None
        while time.monotonic() < deadline:
            message = decode(self.child.stdout.readline())
            if isinstance(message, TelemetryEvent):
                told = message
                if wanted(told):
                    return told
        pytest.fail(f"not told within {TIMEOUT_S:g} s; the last was {told}")

    def end(self) -> list[psutil.Process]:
        """Say Bye, and return what then still runs of what the agent had started."""
        started = psutil.Process(self.child.pid).children(recursive=True)
        self._send(Bye())
        self.child.wait(TIMEOUT_S)
        return psutil.wait_procs(started, timeout=10)[1]

    def _send(self, message: Hello | Bye) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(encode(message))
        self.child.stdin.flush()


@pytest.fixture
def host() -> Iterator[Callable[[Path], Host]]:
    hosts: list[Host] = []

    def start(tools: Path) -> Host:
        hosts.append(Host(tools))
        return hosts[-1]

    yield start
    for each in hosts:
        each.child.kill()
        each.child.wait()
        for stream in (each.child.stdin, each.child.stdout):
            assert stream is not None
            stream.close()


def complete(told: TelemetryEvent) -> bool:
    return None not in (told.gpu_percent, told.gpu_watts, told.thermal, told.power, told.low_power)


def test_a_mac_tells_everything(host, mac):
    agent = host(mac)
    told = agent.until(complete)
    assert told.host == "mac-1"
    assert told.gpu_percent == 93  # ioreg's, which Activity Monitor shows, goes before macmon's
    assert told.gpu_memory_bytes == 6_000_000_000
    assert told.gpu_watts == pytest.approx(31.5)
    assert (told.thermal, told.power, told.battery_percent) == ("heavy", "battery", 64)
    assert told.low_power is True
    assert told.chip == "Apple M2 Max"
    assert 0 <= told.cpu_percent <= 100
    assert told.memory_bytes > 0
    assert agent.end() == []


def test_a_machine_without_gpu_tools_knows_its_processor_alone(host, tool, tool_folder):
    tool("ioreg", "")  # A virtual machine's answers nothing at all.
    told = host(tool_folder).until(lambda told: told.cpu_percent is not None)
    assert (told.gpu_percent, told.gpu_memory_bytes, told.thermal) == (None, None, None)


def test_broken_tools_cost_their_own_figures_only(host, mac, tool):
    tool("ioreg", "import sys; print('<plist'); sys.exit(3)")
    tool("notifyutil", "import time; time.sleep(600)")
    tool("macmon", "print('{\"gpu_active_ratio\": 0.5, \"gpu_pow', end='')")
    agent = host(mac)
    told = agent.until(lambda told: None not in (told.cpu_percent, told.power, told.low_power))
    assert (told.gpu_percent, told.gpu_watts, told.thermal) == (None, None, None)
    assert agent.end() == []


def test_an_ioreg_without_plists_is_read_as_text(host, tool, tool_folder):
    tool(
        "ioreg",
        "import sys\n"
        "if '-a' in sys.argv: sys.exit('no such option')\n"
        'print(\'  "PerformanceStatistics" = {"Device Utilization %"=41}\')',
    )
    assert host(tool_folder).until(lambda told: told.gpu_percent is not None).gpu_percent == 41


def test_macmon_fills_in_what_ioreg_does_not_know(host, mac, tool):
    tool("ioreg", "")
    assert host(mac).until(lambda told: told.gpu_percent is not None).gpu_percent == 50


def test_no_tool_outlives_an_agent_that_is_killed(host, mac):
    agent = host(mac)
    agent.until(complete)
    started = psutil.Process(agent.child.pid).children(recursive=True)
    assert any("macmon" in " ".join(process.cmdline()) for process in started)
    agent.child.kill()
    assert psutil.wait_procs(started, timeout=20)[1] == []


def test_two_nvidia_gpus_are_one_host_and_what_the_driver_refuses_is_unknown(host, tool_folder, monkeypatch):
    (tool_folder / "pynvml.py").write_text(RECORDED.with_name("pynvml.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(tool_folder))
    told = host(tool_folder).until(lambda told: None not in (told.gpu_percent, told.gpu_watts))
    assert (told.gpu_percent, told.gpu_memory_bytes, told.gpu_watts) == (60, 4_000_000_000, 400)
    assert (told.thermal, told.chip) == ("throttled", None)
