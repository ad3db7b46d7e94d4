"""A recorded run on a console again, in its own time or faster."""

from __future__ import annotations

import time
from pathlib import Path

from mlrun import runs
from mlrun.console import open_console

LONGEST_PAUSE_S = 5.0
"""Of the run's time: between a run and going on with it may lie days."""


class _Clock:
    """The run's time, which passes ``speed`` times as fast as ours."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._shown: float | None = None
        self._at = time.monotonic()

    def now(self) -> float:
        return (self._shown or 0.0) + (time.monotonic() - self._at) * self._speed

    def wait_until(self, event_time: float) -> None:
        """Return at ``event_time``; hosts' clocks differ, so an earlier one is now."""
        if self._shown is None or event_time - self._shown > LONGEST_PAUSE_S:
            self._shown, self._at = event_time, time.monotonic()
        elif event_time > self._shown:
            time.sleep(max(0.0, (event_time - self.now()) / self._speed))
            self._at += (event_time - self._shown) / self._speed
            self._shown = event_time


def replay(run_dir: Path, *, speed: float, console: str) -> None:
    """Show the events of ``run_dir`` as they came, ``speed`` times as fast.

    Raises:
        RequestError: the run has no events, or no such console.
    """
    clock = _Clock(speed)
    events = runs.read_events(run_dir)
    with open_console(console, clock=clock.now) as view:
        for event in events:
            clock.wait_until(event.time)
            view.show(event)
