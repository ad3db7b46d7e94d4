"""Parameters that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mlrun.backends.selected import selected
from mlrun.errors import RequestError


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters that match as they are.

    Raises:
        RequestError: a pattern matches none, or nothing is left to train.
    """
    frozen = selected((name for name, _ in model.named_parameters()), patterns, "model.freeze")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen and parameter.requires_grad)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError("model.freeze: no parameter is left to train", fix="freeze fewer")
