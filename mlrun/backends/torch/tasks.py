"""The tasks' losses and metrics in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mlrun.backends.tasks import Measure, Task, task_of
from mlrun.errors import RequestError
from mlrun.spec import JobSpec


def make_task(spec: JobSpec) -> Task:
    """The spec's task.

    Raises:
        RequestError: a callable it names doesn't exist.
    """
    regression = Task("samples", _squared_error, {"mae": _absolute_error})
    classification = Task("images", functional.cross_entropy, {"accuracy": _correct})
    return task_of(spec, _checked, regression, classification)


def _checked(callable_: Measure, what: str, kind: str) -> Measure:
    def measure(outputs: Tensor, targets: Tensor) -> Tensor:
        value = callable_(outputs, targets)
        if isinstance(value, int | float) and kind == "sum":
            return torch.tensor(value, device=outputs.device)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RequestError(
                f"{what} gave {found}, not a tensor with one number", fix=f"return the {kind} over the batch"
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
