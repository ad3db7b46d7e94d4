"""The overlap, as the run folder's timeline shows it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from .conftest import Mlrun

RESNET50 = {
    "model": {"name": "resnet50"},
    "data": {"source": "synthetic", "image_size": 64, "samples": 64, "classes": 10},
    "global_batch_size": 8,
    "steps": 8,
}


def test_early_buckets_of_resnet50_end_inside_the_backward_pass(
    mlrun: Mlrun, spec: Callable[..., str]
) -> None:
    run = mlrun("launch", spec(**RESNET50), "-np", "2")
    assert run.finish() == 0

    steps = spans_by_step(json.loads((run.folder / "timeline.json").read_text())["traceEvents"])
    for rank in (0, 1):
        overlapped = 0
        for step in range(2, 8):
            spans = steps[rank, step]
            backward = ends(spans, "backward")[0]
            buckets = ends(spans, "all_reduce")
            assert len(buckets) > 5, "the model travels in buckets"
            overlapped += buckets[0] < backward
        # Another process on the machine may hold the peer back in a step; it can't in most of them.
        assert overlapped >= 4


def spans_by_step(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    steps = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            steps[event["pid"], event["args"]["step"]].append(event)
    return steps


def ends(spans: list[dict[str, Any]], lane: str) -> list[float]:
    return sorted(span["ts"] + span["dur"] for span in spans if span["cat"] == lane)
