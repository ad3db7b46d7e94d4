"""GPU, power and thermal state of a Mac, from what macOS tells any user.

The figures of ``ioreg`` are those that Activity Monitor shows. Nothing here trusts a tool to be complete:
virtual machines and new chips leave keys out, and a missing key is an unknown figure.
"""

from __future__ import annotations

import importlib
import json
import plistlib
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from xml.parsers.expat import ExpatError

from mlrun.agent.telemetry import tools
from mlrun.agent.telemetry.source import Source, count, percent, watts
from mlrun.probe.macos import low_power
from mlrun.protocol import TelemetryEvent

THERMAL_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")
"""Of ``OSThermalNotification.h``, by number."""

_IOREG = ("-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
# ioreg may draw its tree before a key; other keys only begin like this one, or name it in a list.
_STATISTICS = re.compile(r'^[ |]*"PerformanceStatistics" = \{(.*)\}$', re.MULTILINE)
_FIGURE = re.compile(r'"([^"]+)"=(\d+)(?=[,}]|$)')
_MODEL = re.compile(r'^[ |]*"model" = <?"([^"]+)">?$', re.MULTILINE)
_THERMAL = re.compile(r"^com\.apple\.system\.thermalpressurelevel (\d)$", re.MULTILINE)
_DRAWING_FROM = re.compile(r"^Now drawing from '(AC|Battery) Power'", re.MULTILINE)
_CHARGE = re.compile(r"^ -InternalBattery-\d+.*?\t(\d+)%;", re.MULTILINE)


def parse_ioreg(output: bytes) -> TelemetryEvent:
    """GPU use, GPU memory and chip, from ``ioreg -r -d 1 -w 0 -c IOAccelerator``, with ``-a`` or without."""
    try:
        nodes = _plist_nodes(output)
    except (plistlib.InvalidFileException, ExpatError, ValueError):
        nodes = _text_nodes(output.decode(errors="replace"))
    readings = [_gpu(model, statistics) for model, statistics in nodes]
    # An Intel Mac lists two GPUs, and the built-in one often tells nothing.
    told = [reading for reading in readings if reading.gpu_percent is not None]
    return next(iter(told or readings), TelemetryEvent())


def _plist_nodes(output: bytes) -> list[tuple[Any, dict[str, Any]]]:
    loaded = plistlib.loads(output)
    nodes = [node for node in loaded if isinstance(node, dict)] if isinstance(loaded, list) else []
    return [
        (node.get("model"), statistics if isinstance(statistics, dict) else {})
        for node in nodes
        for statistics in [node.get("PerformanceStatistics")]
    ]


def _text_nodes(output: str) -> list[tuple[Any, dict[str, Any]]]:
    nodes = []
    for text in re.split(r"^[ |]*\+-o ", output, flags=re.MULTILINE):
        model, statistics = _MODEL.search(text), _STATISTICS.search(text)
        figures = _FIGURE.findall(statistics[1]) if statistics else []
        if model or figures:
            nodes.append((model and model[1], {name: int(value) for name, value in figures}))
    return nodes


def _gpu(model: Any, statistics: dict[str, Any]) -> TelemetryEvent:
    name = model.decode(errors="replace").rstrip("\0") if isinstance(model, bytes) else model
    return TelemetryEvent(
        gpu_percent=percent(statistics.get("Device Utilization %", statistics.get("GPU Activity(%)"))),
        gpu_memory_bytes=count(statistics.get("In use system memory", statistics.get("vramUsedBytes"))),
        gpu_watts=watts(statistics.get("Total Power(W)")),
        chip=name if isinstance(name, str) and name else None,
    )


def parse_thermal(output: bytes) -> TelemetryEvent:
    """Thermal pressure, from ``notifyutil -g com.apple.system.thermalpressurelevel``."""
    found = _THERMAL.search(output.decode(errors="replace"))
    level = int(found[1]) if found else len(THERMAL_LEVELS)
    return TelemetryEvent(thermal=THERMAL_LEVELS[level] if level < len(THERMAL_LEVELS) else None)


def parse_battery(output: bytes) -> TelemetryEvent:
    """Where the power comes from, from ``pmset -g batt``."""
    text = output.decode(errors="replace")
    source, charge = _DRAWING_FROM.search(text), _CHARGE.search(text)
    return TelemetryEvent(
        power=None if source is None else {"AC": "mains", "Battery": "battery"}[source[1]],
        battery_percent=percent(int(charge[1])) if charge else None,
    )


def parse_low_power(output: bytes) -> TelemetryEvent:
    """Whether low power mode slows the Mac down, from ``pmset -g``."""
    return TelemetryEvent(low_power=low_power(output.decode(errors="replace")))


def parse_macmon(line: bytes) -> TelemetryEvent:
    """GPU use and power, from a line of ``macmon pipe`` (version 0.7 or later)."""
    try:
        sample = json.loads(line)
    except ValueError:
        return TelemetryEvent()
    if not isinstance(sample, dict):
        return TelemetryEvent()
    share = sample.get("gpu_active_ratio")
    return TelemetryEvent(
        gpu_percent=percent(100 * share) if isinstance(share, int | float) else None,
        gpu_watts=watts(sample.get("gpu_power")),
    )


def _gpu_readings() -> Iterator[TelemetryEvent]:
    """The plist form is the exact one; text is for an ioreg that doesn't write it."""
    if (ioreg := tools.find("ioreg")) is None:
        return
    form: tuple[str, ...] = ("-a",)
    while True:
        try:
            yield parse_ioreg(tools.answer(ioreg, *form, *_IOREG))
        except subprocess.CalledProcessError:
            if not form:
                raise
            form = ()


def _macmon_readings() -> Iterator[TelemetryEvent]:
    if macmon := tools.find("macmon"):
        yield from map(parse_macmon, tools.lines(macmon, "pipe", "-i", "1000"))


def _zeus_readings() -> Iterator[TelemetryEvent]:
    """GPU power out of the energy that the GPU has used so far."""
    try:
        monitor = importlib.import_module("zeus_apple_silicon").AppleEnergyMonitor()
    except ImportError:
        return
    then, before = time.monotonic(), monitor.get_cumulative_energy().gpu_mj
    yield TelemetryEvent()
    while True:
        now, used = time.monotonic(), monitor.get_cumulative_energy().gpu_mj
        known = before is not None and used is not None
        yield TelemetryEvent(gpu_watts=watts((used - before) / 1e3 / (now - then)) if known else None)
        then, before = now, used


def _thermal_readings() -> Iterator[TelemetryEvent]:
    while notifyutil := tools.find("notifyutil"):
        yield parse_thermal(tools.answer(notifyutil, "-g", "com.apple.system.thermalpressurelevel"))


def _battery_readings() -> Iterator[TelemetryEvent]:
    while pmset := tools.find("pmset"):
        yield parse_battery(tools.answer(pmset, "-g", "batt"))


def _low_power_readings() -> Iterator[TelemetryEvent]:
    while pmset := tools.find("pmset"):
        yield parse_low_power(tools.answer(pmset, "-g"))


SOURCES = (
    Source(_gpu_readings),
    Source(_macmon_readings, period_s=0.0),
    Source(_zeus_readings),
    Source(_thermal_readings, period_s=2.0),
    Source(_battery_readings, period_s=15.0),
    Source(_low_power_readings, period_s=15.0),
)
"""The best first. On a machine without these tools each ends at once."""
