"""The first steps of one rank as a Chrome trace (open it in Perfetto or chrome://tracing)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlrun import runs
from mlrun.backends.base import Span

STEPS = 20
"""Steps that are traced: enough to see the overlap, few enough to cost nothing."""

_LANES = ("data", "forward", "backward", "wait", "optimizer", "all_reduce")
_OTHER = len(_LANES)


class Timeline:
    """Collects the spans of the first steps.

    Times in the file are microseconds since the epoch, so that the ranks' files fit together.
    """

    def __init__(self, rank: int, host: str) -> None:
        self._rank = rank
        self._epoch_minus_monotonic = time.time() - time.monotonic()
        self._steps = 0
        self._events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({host})"}},
            *(
                {"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
                for lane, name in enumerate(_LANES)
            ),
        ]

    @property
    def full(self) -> bool:
        return self._steps >= STEPS

    def add(self, step: int, spans: Iterable[Span]) -> None:
        """Spans of one step, named as ``Backend.spans`` names them."""
        self._steps += 1
        for span in spans:
            lane = span.name.partition(":")[0]
            self._events.append(
                {
                    "name": span.name,
                    "cat": lane,
                    "ph": "X",
                    "pid": self._rank,
                    "tid": _LANES.index(lane) if lane in _LANES else _OTHER,
                    "ts": (span.start + self._epoch_minus_monotonic) * 1e6,
                    "dur": (span.end - span.start) * 1e6,
                    "args": {"step": step},
                }
            )

    def write(self, run_dir: Path) -> Path:
        """Write ``timeline-rank-K.json`` into the run folder."""
        path = run_dir / f"timeline-rank-{self._rank}.json"
        runs.write_atomically(path, json.dumps({"traceEvents": self._events}))
        return path
