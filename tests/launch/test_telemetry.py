"""What hosts and agents tell of a real run, on its way to the console and the run folder."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlrun.console.findings import findings
from mlrun.console.model import Run as Known
from mlrun.protocol import Event
from mlrun.wire import decode

from .conftest import Mlrun, Run

RECORDED = Path(__file__).parents[1] / "telemetry" / "recorded" / "tool.py"


def known(run: Run) -> Known:
    """What a console knows after the events so far."""
    told = Known()
    for event in run.events:
        decoded = decode(json.dumps(event))
        assert isinstance(decoded, Event)
        told.apply(decoded)
    return told


def test_the_figures_of_a_mac_arrive(
    mlrun: Mlrun, spec: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ioreg", "notifyutil", "pmset", "macmon"):
        tool = tmp_path / "tools" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!{sys.executable}\n{RECORDED.read_text()}")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}")
    run = mlrun("launch", spec(trouble={"pause_s": 0.1}, steps=2000), "-np", "2")
    run.until("StepEvent", rank=1)
    run.until("TelemetryEvent", gpu_watts=lambda watts: watts is not None, thermal="heavy")
    run.until("StepEvent", rank=1)
    told = known(run)
    host = told.of_host(told.workers[1])
    assert (host.gpu_percent, host.gpu_memory_bytes, host.chip) == (93, 6_000_000_000, "Apple M2 Max")
    assert told.per_watt(told.workers[1]) is None  # the power is that of a GPU, which doesn't train here
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert '"gpu_percent":93.0' in (run.folder / "events.jsonl").read_text()


def test_a_stopped_worker_is_named_until_it_goes_on(mlrun: Mlrun, spec: Callable[..., str]) -> None:
    # Hosts are looked at once a second: what is left to do after the hold must outlast a look.
    job = spec(trouble={"what": "freeze", "rank": 1, "pause_s": 0.05}, steps=100)
    run = mlrun("launch", job, "-np", "2")
    run.until("StateEvent", state="stopped", rank=1)
    assert [(f.kind, f.rank) for f in findings(known(run))] == [("stopped", 1)]
    held = [process for process in run.children() if process.status() == psutil.STATUS_STOPPED]
    assert len(held) == 1
    held[0].resume()
    run.until("StateEvent", state="going on", rank=1)
    assert findings(known(run)) == []
    assert run.finish() == 0
