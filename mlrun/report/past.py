"""Recorded runs in words: a line for each, one at length, two beside each other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mlrun import index, runs
from mlrun.console import text
from mlrun.console.plain import log_line
from mlrun.errors import RequestError
from mlrun.protocol import LogEvent
from mlrun.specfile import load
from mlrun.wire import ProtocolError, decode

UNKNOWN = text.UNKNOWN
LOOK_S = 0.2
"""How often a log that grows is looked at."""
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


def table(folders: list[Path]) -> Table:
    """A line for each run."""
    alive = {entry.folder for entry in index.entries() if entry.launcher is not None}
    lines = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("id", "run", "status", "ranks", "steps", "speed", "result", "started"):
        lines.add_column(title, justify="right" if title in ("ranks", "steps", "speed") else "left")
    for folder in folders:
        lines.add_row(index.short_id(folder), folder.name, *_figures(folder, folder in alive))
    return lines


def status_of(folder: Path, alive: bool) -> str:
    """How the run stands."""
    if alive:
        return RUNNING
    if not (folder / runs.SPEC_FILE).is_file():
        return DAMAGED
    if not (folder / runs.SUMMARY_FILE).exists():
        return CUT_OFF
    return str(runs.read_summary(folder).get("status") or DAMAGED)


def _figures(folder: Path, alive: bool) -> list[str]:
    summary = runs.read_summary(folder)
    speed, unit = summary.get("samples_per_second"), summary.get("unit")
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.stat().st_ctime))
    return [
        status_of(folder, alive),
        _or_unknown(summary.get("world_size")),
        _or_unknown(summary.get("step")),
        f"{text.speed(speed)} {unit}/s" if isinstance(speed, float) else UNKNOWN,
        _result(summary),
        str(summary.get("started") or "").replace("T", " ")[:16] or started,
    ]


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
        yield from _lines(log, going_on)
        return
    if not events.is_file():
        raise RequestError(f"{run_dir.name} has recorded nothing", fix="name another run")
    for line in _lines(events, going_on):
        with contextlib.suppress(ProtocolError):
            event = decode(line)
            if isinstance(event, LogEvent) and rank in (None, event.rank):
                yield log_line(event)


def _lines(path: Path, going_on: Callable[[], bool]) -> Iterator[str]:
    """Whole lines; the last one of a file that nobody writes any more needs no end."""
    with path.open(encoding="utf-8", errors="replace") as file:
        held = ""
        while True:
            lasts = going_on()  # asked before the read: what is written until then is read
            if part := file.readline():
                held += part
                if held.endswith("\n"):
                    yield held[:-1]
                    held = ""
            elif lasts:
                time.sleep(LOOK_S)
            else:
                break
        if held:
            yield held
