"""What is learnt: the loss of a batch, its metrics, and what one sample is called, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlrun.backends.resolve import resolve
from mlrun.spec import JobSpec
from mlrun.spec.training import TaskBlock

Measure = Callable[[Any, Any], Any]
"""Of (outputs, targets), in the framework's tensors."""
Checked = Callable[[Measure, str, str], Measure]
"""The user's callable, held to giving one number; with its name for people, and mean or sum."""


@dataclass(frozen=True)
class Task:
    """``loss`` is the mean over a batch, each metric the sum over a batch; both of (outputs, targets)."""

    unit: str
    loss: Measure
    metrics: Mapping[str, Measure] = field(default_factory=dict)


def task_of(spec: JobSpec, checked: Checked, regression: Task, classification: Task) -> Task:
    """The spec's task, of a framework's own ``regression`` and ``classification`` (of images).

    Raises:
        RequestError: a callable it names doesn't exist.
    """
    task = spec.task
    if isinstance(task, TaskBlock):

        def own(reference: str, key: str, kind: str) -> Measure:
            return checked(resolve(reference, spec.workdir, key), f"{key}: {reference}", kind)

        metrics = {name: own(each, f"task.metrics.{name}", "sum") for name, each in task.metrics.items()}
        return Task(task.unit, own(task.loss, "task.loss", "mean"), metrics)
    if task == "regression":
        return regression
    unit = "images" if task == "image-classification" else "sequences"
    return Task(unit, classification.loss, classification.metrics)
