"""The live view: the whole screen of a terminal, redrawn a few times a second where something changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.live import Live

from mlrun.console.base import Console
from mlrun.console.frame import frame, last_frame
from mlrun.console.model import Run
from mlrun.console.result import result
from mlrun.protocol import Event

PERIOD_S = 0.25
"""Between two frames, while there are few ranks to draw."""
QUICK_RANKS = 8
CLOCK_S = 1.0
"""The elapsed time moves on its own, once a second."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is drawn: ``frame(run, width, height, now)``, and what stays on the terminal at the end,
    followed by how the run ended."""

    frame: Callable[[Run, int, int, float], RenderableType]
    last_frame: Callable[[Run, int, float], RenderableType] | None = None


RUN_SCREEN = Screen(frame, last_frame)


class LiveConsole(Console):
    """Draws on the terminal's alternate screen, so that resizing leaves no debris and the end restores it.

    The screen is taken at the first event: what fails before it is told on the user's own.
    """

    def __init__(self, stream: TextIO, screen: Screen, clock: Callable[[], float] = time.time) -> None:
        super().__init__(stream)
        self._layout = screen
        self._clock = clock
        self._terminal = Terminal(file=stream, highlight=False, markup=False, emoji=False)
        self._run = Run()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._screen = Live(
            console=self._terminal,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._drawer = threading.Thread(target=self._draw_until_closed, name="console", daemon=True)

    def _show(self, event: Event) -> None:
        with self._lock:
            self._run.apply(event)
        if self._drawer.ident is None:
            self._screen.start()
            self._drawer.start()
        self._changed.set()

    def _draw_until_closed(self) -> None:
        try:
            while not self._closing.wait(self._period_s):
                self._changed.wait(CLOCK_S)
                self._changed.clear()
                self._draw()
        except OSError:
            self._forget_reader()

    @property
    def _period_s(self) -> float:
        return max(PERIOD_S, min(CLOCK_S, PERIOD_S * len(self._run.workers) / QUICK_RANKS))

    def _draw(self) -> None:
        width, height = self._terminal.size
        with self._lock:
            self._screen.update(self._layout.frame(self._run, width, height, self._clock()), refresh=True)

    def _close(self) -> None:
        if self._drawer.ident is None:
            return
        self._closing.set()
        self._changed.set()
        self._drawer.join()
        self._screen.stop()
        if self._layout.last_frame is None:
            return
        width, latest = self._terminal.width, self._run.latest or 0.0
        self._terminal.print(self._layout.last_frame(self._run, width, latest))
        self._terminal.print()
        for line in result(self._run):
            self._terminal.print(line, soft_wrap=True)
