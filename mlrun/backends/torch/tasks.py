"""What is learnt: the loss of a batch, its metrics, and what one sample is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from mlrun.backends.resolve import resolve
from mlrun.errors import RequestError
from mlrun.spec import JobSpec
from mlrun.spec.training import TaskBlock

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
            name: _own(reference, spec.workdir, f"task.metrics.{name}", "sum")
            for name, reference in task.metrics.items()
        }
        return Task(task.unit, _own(task.loss, spec.workdir, "task.loss", "mean"), metrics)
    if task == "regression":
        return Task("samples", _squared_error, {"mae": _absolute_error})
    unit = "images" if task == "image-classification" else "sequences"
    return Task(unit, functional.cross_entropy, {"accuracy": _correct})


def _own(reference: str, workdir: str | None, key: str, kind: str) -> Measure:
    """The user's callable, held to giving one number: the ``kind`` over the batch."""
    callable_ = resolve(reference, workdir, key)

    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        value = callable_(outputs, targets)
        if isinstance(value, int | float) and kind == "sum":
            return torch.tensor(value, device=outputs.device)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RequestError(
                f"{key}: {reference} gave {found}, not a tensor with one number",
                fix=f"return the {kind} over the batch",
            )
        return value.reshape(())

    return measure


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).sum()


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets.reshape(outputs.shape))


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Summed over samples, averaged over what one sample predicts."""
    return torch.abs(outputs - targets.reshape(outputs.shape)).flatten(1).mean(dim=1).sum()
