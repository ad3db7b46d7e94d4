"""Processor and memory of any host."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from mlrun.agent.telemetry.source import Source, count, percent
from mlrun.protocol import TelemetryEvent


def _readings() -> Iterator[TelemetryEvent]:
    psutil.cpu_percent()  # The first call has nothing to compare with and would answer 0.
    yield TelemetryEvent()
    while True:
        memory = psutil.virtual_memory()
        yield TelemetryEvent(
            cpu_percent=percent(psutil.cpu_percent()), memory_bytes=count(memory.total - memory.available)
        )


SOURCES = (Source(_readings),)
