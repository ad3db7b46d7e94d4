"""The run's curves for TensorBoard, where it is installed: ``tensorboard --logdir runs``."""

from __future__ import annotations

import importlib.util
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

from mlrun.console.model import Run
from mlrun.protocol import (
    EvaluationEvent,
    Event,
    StepEvent,
    TelemetryEvent,
)

FOLDER = "tensorboard"
CLOSE_S = 10.0
"""How long the last values may take to be written."""


class Scalars:
    """Loss, learning rate, metrics, speeds and GPU use over steps.

    A thread of its own imports TensorBoard and writes: a slow or full disk costs curves, never the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._run = Run()
        self._queue: SimpleQueue[tuple[float, int, dict[str, float]] | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="scalars", daemon=True)

    def add(self, event: Event) -> None:
        self._run.apply(event)
        values = dict(self._values(event))
        if values and self._run.step is not None:
            if self._writer.ident is None:
                self._writer.start()
            self._queue.put((event.time, self._run.step, values))

    def close(self) -> None:
        """Write what is left. May be called twice."""
        self._queue.put(None)
        if self._writer.ident is not None:
            self._writer.join(CLOSE_S)

    def _values(self, event: Event) -> Iterator[tuple[str, float]]:
        run = self._run
        if isinstance(event, StepEvent) and event.rank is not None:
            speed = run.workers[event.rank].speed
            if speed is not None:
                yield f"{run.unit} per second/rank {event.rank}", speed
            if event.rank == min(run.workers):
                if event.lr is not None:
                    yield "training/learning rate", event.lr
                if event.loss is not None:
                    yield "training/loss", event.loss
                if run.speed is not None:
                    yield f"{run.unit} per second/all", run.speed
        elif isinstance(event, EvaluationEvent):
            for name, value in run.metrics.items():
                yield f"validation/{name}", value
        elif isinstance(event, TelemetryEvent) and event.gpu_percent is not None:
            yield f"GPU percent/{event.host}", event.gpu_percent

    def _write(self) -> None:
        # TensorBoard's own sign that it should do without TensorFlow, which takes half a gigabyte.
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        try:
            writer = EventFileWriter(str(self._folder))
            while (item := self._queue.get()) is not None:
                at, step, values = item
                told = [summary_pb2.Summary.Value(tag=t, simple_value=v) for t, v in values.items()]
                summary = summary_pb2.Summary(value=told)
                writer.add_event(event_pb2.Event(wall_time=at, step=step, summary=summary))
            writer.close()
        except OSError:
            return


def open_scalars(run_dir: Path) -> Scalars | None:
    """None where TensorBoard isn't installed."""
    return Scalars(run_dir) if importlib.util.find_spec("tensorboard") is not None else None
