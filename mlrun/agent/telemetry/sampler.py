"""One reading of the host out of what all sources know."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from mlrun.agent.telemetry import apple, nvidia, system, tools
from mlrun.agent.telemetry.source import Source
from mlrun.protocol import Event, TelemetryEvent

STALE_S = 5.0
"""Beyond its period, how old a source's reading may be: what is older is unknown."""
RETRY_S = 10.0
"""After a source failed."""
POWER_WINDOW_S = 5.0
"""Macs publish energy every two seconds or so: shorter means would swing between nothing and double."""
_POWER_AT_LEAST_S = 3.0

_FIGURES = [
    field.name for field in fields(TelemetryEvent) if field.name not in {f.name for f in fields(Event)}
]


class Telemetry:
    """The figures of this host, kept up to date from its making to ``close``."""

    def __init__(
        self, sources: Sequence[Source] = (*apple.SOURCES, *nvidia.SOURCES, *system.SOURCES)
    ) -> None:
        self._sources = sources
        self._latest: list[tuple[float, TelemetryEvent] | None] = [None] * len(sources)
        self._power: deque[tuple[float, float]] = deque()
        self._closing = threading.Event()
        for place, source in enumerate(sources):
            name = f"telemetry-{place}"
            threading.Thread(target=self._follow, args=(place, source), name=name, daemon=True).start()

    def event(self, host: str) -> TelemetryEvent:
        """What is known now; of each figure the first source that knows it counts."""
        now = time.monotonic()
        fresh = [
            latest[1]
            for latest, source in zip(self._latest, self._sources, strict=True)
            if latest is not None and now - latest[0] < STALE_S + source.period_s
        ]
        known: dict[str, Any] = {
            name: next((v for reading in fresh if (v := getattr(reading, name)) is not None), None)
            for name in _FIGURES
        }
        told = TelemetryEvent(**known, host=host)
        return replace(told, gpu_watts=self._mean_power(now, told.gpu_watts))

    def close(self) -> None:
        """End the sources, and every tool that one of them runs."""
        self._closing.set()
        tools.end_all()

    def _follow(self, place: int, source: Source) -> None:
        while not self._closing.is_set():
            try:
                for reading in source.readings():
                    self._latest[place] = time.monotonic(), reading
                    if self._closing.wait(source.period_s):
                        return
                if self._latest[place] is None:
                    return  # This host has no such source.
            except Exception:  # Whatever a tool or library comes up with: training goes on.
                pass
            self._closing.wait(RETRY_S)

    def _mean_power(self, now: float, watts: float | None) -> float | None:
        """Over the last seconds. Exactly 0 is a counter that stands still, not a GPU without power."""
        if watts is not None:
            self._power.append((now, watts))
        while self._power and self._power[0][0] < now - POWER_WINDOW_S:
            self._power.popleft()
        if not self._power or now - self._power[0][0] < _POWER_AT_LEAST_S:
            return None
        return statistics.fmean(value for _, value in self._power) or None
