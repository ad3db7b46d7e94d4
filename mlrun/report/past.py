"""Recorded runs in words: a line for each, one at length, two beside each other."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from mlrun import index, runs
from mlrun.console import text
from mlrun.console.plain import log_line
from mlrun.errors import RequestError
from mlrun.protocol import LogEvent
from mlrun.specfile import load
from mlrun.wire import ProtocolError, decode

UNKNOWN = text.UNKNOWN
_FIGURES = (
    "status",
    "world_size",
    "engine",
    "device",
    "step",
    "global_batch_size",
    "samples_per_second",
    "loss",
)
_COLUMNS = ("id", "run", "status", "ranks", "steps", "speed", "result", "started")
_NUMBERS = ("ranks", "steps", "speed")
_SPARED = ("ranks", "speed", "started")
_WIDE = 120
"""From this many columns on there is room for all."""
RUNNING, DAMAGED, CUT_OFF = "running", "damaged", "cut off"
"""Besides the statuses of a summary: cut off is a run whose launcher was killed."""


def listed(runs_dir: Path, *, everywhere: bool) -> list[Path]:
    """Folders that are, or should be, runs: the newest first."""
    found = {path.resolve() for path in runs_dir.glob("*/") if _looks_like_a_run(path)}
    if everywhere or not found:
        found |= {entry.folder for entry in index.entries()}
    return sorted(found, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)


def _looks_like_a_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (runs.SPEC_FILE, runs.EVENTS_FILE, runs.CHECKPOINTS))


def print_table(folders: list[Path]) -> None:
    """A line for each run; a narrow terminal gets fewer columns, and a file or a pipe all of them."""
    terminal = Console(highlight=False)
    if not terminal.is_terminal and "COLUMNS" not in os.environ:
        terminal.width = _WIDE
    alive = {entry.folder for entry in index.entries() if entry.launcher is not None}
    rows = [
        {"id": index.short_id(folder), "run": folder.name, **_figures(folder, folder in alive)}
        for folder in folders
    ]
    lines = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = [title for title in _COLUMNS if terminal.width >= _WIDE or title not in _SPARED]
    for title in shown:
        width = 0 if title == "result" else max((len(row[title]) for row in rows), default=0)
        justify: JustifyMethod = "right" if title in _NUMBERS else "left"
        lines.add_column(title, justify=justify, no_wrap=True, min_width=width)
    for row in rows:
        lines.add_row(*(row[title] for title in shown))
    terminal.print(lines)


def status_of(folder: Path, alive: bool) -> str:
    """How the run stands."""
    if alive:
        return RUNNING
    if not (folder / runs.SPEC_FILE).is_file():
        return DAMAGED
    if not (folder / runs.SUMMARY_FILE).exists():
        return CUT_OFF
    return str(runs.read_summary(folder).get("status") or DAMAGED)


def _figures(folder: Path, alive: bool) -> dict[str, str]:
    summary = runs.read_summary(folder)
    speed, unit = summary.get("samples_per_second"), summary.get("unit")
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.stat().st_ctime))
    return {
        "status": status_of(folder, alive),
        "ranks": _or_unknown(summary.get("world_size")),
        "steps": _or_unknown(summary.get("step")),
        "speed": f"{text.speed(speed)} {unit}/s" if isinstance(speed, float) else UNKNOWN,
        "result": _result(summary),
        "started": str(summary.get("started") or "").replace("T", " ")[:16] or started,
    }


def _result(summary: Mapping[str, Any]) -> str:
    metrics = summary.get("metrics")
    known = metrics if isinstance(metrics, dict) else {}
    told = [f"{name} {text.number(value)}" for name, value in known.items()]
    if not told and isinstance(summary.get("loss"), float):
        told = [f"loss {text.number(summary['loss'])}"]
    return ", ".join(told[:2]) or UNKNOWN


def _or_unknown(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


def compared(one: Path, other: Path) -> Table:
    """Figures of two runs, then the keys in which their specs differ.

    Raises:
        RequestError: the spec of one of them can't be read.
    """
    lines = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", one.name, other.name):
        lines.add_column(title, overflow="fold")
    first, second = runs.read_summary(one), runs.read_summary(other)
    for key in _FIGURES:
        lines.add_row(key, _figure(first.get(key)), _figure(second.get(key)))
    metrics = [s["metrics"] if isinstance(s.get("metrics"), dict) else {} for s in (first, second)]
    for key in dict.fromkeys([*metrics[0], *metrics[1]]):
        lines.add_row(key, *(_figure(each.get(key)) for each in metrics))
    same = first.get("parameter_hash") is not None and first["parameter_hash"] == second.get("parameter_hash")
    lines.add_row("parameters", *(("the same",) * 2 if same else (_short(first), _short(second))))
    lines.add_section()
    for key, values in _differences(one, other):
        lines.add_row(key, *values)
    return lines


def _short(summary: Mapping[str, Any]) -> str:
    return str(summary.get("parameter_hash") or UNKNOWN)[:16]


def _figure(value: Any) -> str:
    return text.number(value) if isinstance(value, float) else _or_unknown(value)


def _differences(one: Path, other: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    specs = [dict(_flat(load(folder / runs.SPEC_FILE).model_dump(mode="json"))) for folder in (one, other)]
    for key in dict.fromkeys([*specs[0], *specs[1]]):
        values = tuple(str(spec.get(key, UNKNOWN)) for spec in specs)
        if values[0] != values[1]:
            yield key, (values[0], values[1])


def _flat(block: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def log_lines(run_dir: Path, rank: int | None, going_on: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """What the run printed: a rank's whole log, or the merged lines as the screen had them.

    While ``going_on`` says so, waits for more.

    Raises:
        RequestError: nothing is recorded.
    """
    log, events = run_dir / f"rank-{rank}.log", run_dir / runs.EVENTS_FILE
    if rank is not None and log.is_file():
        yield from runs.follow(log, going_on)
        return
    if not events.is_file():
        raise RequestError(f"{run_dir.name} has recorded nothing", fix="name another run")
    for line in runs.follow(events, going_on):
        with contextlib.suppress(ProtocolError):
            event = decode(line)
            if isinstance(event, LogEvent) and rank in (None, event.rank):
                yield log_line(event)
