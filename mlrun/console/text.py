"""How figures look as text. Unknown is a dash, never 0."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable

UNKNOWN = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-_]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(line: str) -> str:
    """A log line without what would move a terminal's cursor: of a redrawn line, what stands last."""
    line = _ESCAPES.sub("", line).rstrip("\r\n").rpartition("\r")[2]
    return _CONTROLS.sub("", line.expandtabs())


def number(value: float | None, digits: int = 4) -> str:
    """Three or four significant digits, without an exponent where people don't expect one."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if 0 < abs(value) < 1e-3 else f"{value:#.{digits}g}".rstrip(".")


def speed(value: float | None) -> str:
    """One decimal below 1,000: enough to compare, few enough not to flicker."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def speed_up(value: float | None) -> str:
    """Beside a speed; nothing where it isn't known."""
    return "" if value is None else f" {value:.2f}×"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} %"


def milliseconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value >= 10_000:
        return f"{value / 1e3:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def duration(seconds: float | None) -> str:
    """``0:07``, ``12:03``, ``3:05:00``."""
    if seconds is None:
        return UNKNOWN
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def size(count: float) -> str:
    """Bytes, in decimal units."""
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.1f} {_UNITS[power]}" if power and count < 100 else f"{count:.0f} {_UNITS[power]}"


def sparkline(values: Iterable[float], width: int, floor: float | None = None) -> str:
    """The values as at most ``width`` blocks, from their minimum (or ``floor``) to their maximum.

    Where there are more values than blocks, a block is the mean of its share of them.
    """
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    if len(known) > width:
        edges = [len(known) * i // width for i in range(width + 1)]
        known = [statistics.fmean(known[a:b]) for a, b in itertools.pairwise(edges)]
    low, high = min(known) if floor is None else floor, max(known)
    if high <= low:
        return _BLOCKS[3] * len(known)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(0, min(top, round((v - low) / (high - low) * top)))] for v in known)
