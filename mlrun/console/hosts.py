"""Views of hosts without a run: what each of them does now."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.text import Text

from mlrun.console import text
from mlrun.console.base import Console
from mlrun.console.live import Screen
from mlrun.console.model import Run
from mlrun.console.plain import EVERY_S, log_line
from mlrun.console.rows import bar
from mlrun.protocol import Event, LogEvent, TelemetryEvent

MIN_WIDTH, MIN_HEIGHT = 60, 6
GONE_S = 5.0
"""A host that has told nothing for so long shows no figures any more."""
LOG_LINES = 3
_STYLES = {"GPU": "blue", "CPU": "magenta"}


def hosts_frame(run: Run, width: int, height: int, now: float) -> RenderableType:
    """A line for each host, the busiest first where not all fit, and what was said last."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    told = sorted(run.telemetry.values(), key=lambda t: t.host or "")
    logs = list(run.logs)[-LOG_LINES:]
    room = height - 2 - len(logs)
    if len(told) > room:
        told = sorted(told, key=lambda t: -(t.gpu_percent or t.cpu_percent or 0.0))[: room - 1]
    name = max(4, *(min(len(t.host or ""), 20) for t in told)) if told else 4
    free = max(width - name - 59, 12)
    lines = [_heading(name, free), *(_row(t, name, free, now) for t in told)]
    if (left := len(run.telemetry) - len(told)) > 0:
        lines.append(Text(f" and {left} more hosts", style="dim"))
    if not told:
        lines = [Text(" waiting for the hosts to tell", style="dim")]
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return Group(*lines, Text(), *(Text(f" {log_line(log)}", style="yellow", no_wrap=True) for log in logs))


HOSTS_SCREEN = Screen(hosts_frame)


class PlainHosts(Console):
    """A line for each host every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal = Terminal(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._printed: dict[str, float] = {}

    def _show(self, event: Event) -> None:
        if isinstance(event, LogEvent):
            self._terminal.print(Text(log_line(event)))
        elif isinstance(event, TelemetryEvent):
            host = event.host or text.UNKNOWN
            if event.time - self._printed.get(host, 0.0) >= EVERY_S and event.cpu_percent is not None:
                self._printed[host] = event.time
                self._terminal.print(Text(host_line(event)))

    def _close(self) -> None:
        pass


def host_line(told: TelemetryEvent) -> str:
    """What one host does, leaving out what isn't known."""
    figures = [
        ("GPU", None if told.gpu_percent is None else text.percent(told.gpu_percent)),
        ("GPU memory", None if told.gpu_memory_bytes is None else text.size(told.gpu_memory_bytes)),
        ("power", None if told.gpu_watts is None else f"{told.gpu_watts:.1f} W"),
        ("CPU", None if told.cpu_percent is None else text.percent(told.cpu_percent)),
        ("memory", None if told.memory_bytes is None else text.size(told.memory_bytes)),
        ("thermal", told.thermal),
    ]
    known = [f"{name} {value}" for name, value in figures if value is not None]
    return "   ".join([told.host or text.UNKNOWN, *known, *_conditions(told)])


def _conditions(told: TelemetryEvent) -> list[str]:
    battery = f"battery {text.percent(told.battery_percent)}" if told.power == "battery" else None
    return [part for part in (battery, "low power mode" if told.low_power else None, told.chip) if part]


def _heading(name: int, free: int) -> Text:
    use = free // 2 + 10
    columns = f"{'host':<{name}}  {'GPU':<{use}}  {'CPU':<{use}}  {'memory':>7}  {'power':>6}  thermal"
    return Text(f" {columns}", style="dim", no_wrap=True)


def _row(told: TelemetryEvent, name: int, free: int, now: float) -> Text:
    host = Text(told.host or text.UNKNOWN)
    host.truncate(name, overflow="ellipsis", pad=True)
    line = Text.assemble(" ", host, no_wrap=True)
    if now - told.time > GONE_S:
        return line.append(f"  nothing told for {text.duration(now - told.time)}", style="red")
    for what, percent in (("GPU", told.gpu_percent), ("CPU", told.cpu_percent)):
        share = None if percent is None else percent / 100
        use = Text.assemble((what, "dim"), " ", bar(share, free // 2, _STYLES[what]))
        line.append_text(Text.assemble("  ", use, f" {text.percent(percent):>5}"))
    memory = text.UNKNOWN if told.gpu_memory_bytes is None else text.size(told.gpu_memory_bytes)
    power = text.UNKNOWN if told.gpu_watts is None else f"{told.gpu_watts:.1f} W"
    line.append(f"  {memory:>7}  {power:>6}  ")
    hot = told.thermal not in (None, "nominal")
    line.append(f"{told.thermal or text.UNKNOWN:<9}", style="yellow" if hot else "")
    return line.append("  " + " · ".join(_conditions(told)), style="dim")
