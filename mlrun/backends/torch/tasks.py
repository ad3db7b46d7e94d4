"""What is learnt: the loss of a batch, its metrics, and what one sample is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from mlrun.backends.resolve import resolve
from mlrun.spec import JobSpec, TaskBlock

Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """``loss`` is the mean over a batch, each metric the sum over a batch; both of (outputs, targets)."""

    unit: str
    loss: Measure
    metrics: Mapping[str, Measure] = field(default_factory=dict)


def make_task(spec: JobSpec) -> Task:
    """The spec's task.

    Raises:
        RequestError: a callable it names doesn't exist.
    """
    task = spec.task
    if isinstance(task, TaskBlock):
        metrics = {
            name: resolve(reference, spec.workdir, f"task.metrics.{name}")
            for name, reference in task.metrics.items()
        }
        return Task(task.unit, resolve(task.loss, spec.workdir, "task.loss"), metrics)
    if task == "regression":
        return Task("samples", _squared_error, {"mae": _absolute_error})
    unit = "images" if task == "image-classification" else "sequences"
    return Task(unit, functional.cross_entropy, {"accuracy": _correct})


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).sum()


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets.reshape(outputs.shape))


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Summed over samples, averaged over what one sample predicts."""
    return torch.abs(outputs - targets.reshape(outputs.shape)).flatten(1).mean(dim=1).sum()
