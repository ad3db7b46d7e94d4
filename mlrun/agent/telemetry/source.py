"""What a source of telemetry is, and which of its figures are believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mlrun.protocol import TelemetryEvent

_MOST = 1 << 53
"""Counters that wrapped below zero read as almost 2**64."""


@dataclass(frozen=True, slots=True)
class Source:
    """Something that knows a part of a host's telemetry.

    ``readings`` gives one reading after another, each with the fields it knows. It may block, fail, or end
    at once where the host has no such source.
    """

    readings: Callable[[], Iterator[TelemetryEvent]]
    period_s: float = 1.0
    """Between the end of a reading and the next."""


def percent(value: Any) -> float | None:
    """A share in percent; None for what can't be one."""
    return float(value) if _is_number(value) and 0 <= value <= 100 else None


def count(value: Any) -> int | None:
    """A number of bytes; None for what can't be one."""
    return int(value) if _is_number(value) and 0 <= value < _MOST else None


def watts(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 <= value < 100_000 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
