"""``mlrun.report``: what a script tells of its own progress becomes the run's events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import mlrun
from mlrun.protocol import Event, StepEvent

REPORT_S = 1.0
"""Progress is passed on about this often."""


class Reports:
    """Counts what one rank's script reports."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._began = self._told = time.monotonic()
        self._steps = self._samples = 0
        self._told_steps = self._told_samples = 0
        self._loss: float | None = None
        """The latest since the last event."""

    def add(self, samples: int, loss: float | None) -> None:
        """One step of ``samples`` samples."""
        with self._lock:
            self._steps += 1
            self._samples += samples
            self._loss = loss if loss is not None else self._loss
            if time.monotonic() - self._told >= REPORT_S:
                self._tell()

    def end(self) -> dict[str, Any]:
        """This rank's figures for the summary; nothing where nothing was reported."""
        with self._lock:
            if self._steps == 0:
                return {}
            if self._steps > self._told_steps:
                self._tell()
            seconds = time.monotonic() - self._began
            return {
                "step": self._steps,
                "samples": self._samples,
                "seconds": seconds,
                "samples_per_second": self._samples / seconds,
            }

    def _tell(self) -> None:
        now = time.monotonic()
        seconds = now - self._told
        self._send(
            StepEvent(
                step=self._steps,
                steps_total=None,
                epoch=None,
                steps=self._steps - self._told_steps,
                samples=self._samples - self._told_samples,
                seconds=seconds,
                data_s=0.0,
                compute_s=seconds,
                comm_s=0.0,
                lr=None,
                loss=self._loss,
            )
        )
        self._loss = None
        self._told, self._told_steps, self._told_samples = now, self._steps, self._samples


def begin(send: Callable[[Event], None]) -> Reports:
    """From now on ``mlrun.report`` goes through ``send``."""
    reports = Reports(send)
    mlrun.reporter = reports.add
    return reports
