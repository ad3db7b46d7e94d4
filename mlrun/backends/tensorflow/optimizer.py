"""The spec's optimizer in Keras' terms."""

from __future__ import annotations

from typing import Any

import keras

from mlrun.backends.selected import selected
from mlrun.backends.tensorflow.checkpoint import named
from mlrun.spec import JobSpec


class SGD(keras.optimizers.SGD):  # type: ignore[misc]
    """Keras' own, with an L2 penalty: Keras' ``weight_decay`` is decoupled from the gradient."""

    def __init__(self, penalty: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.penalty = penalty
        self.spared: set[int] = set()
        """Numbers of variables without the penalty."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """As Keras'; gradients arrive unscaled and clipped."""
        if self.penalty and self._get_variable_index(variable) not in self.spared:
            gradient = gradient + keras.ops.cast(variable, gradient.dtype) * self.penalty
        super().update_step(gradient, variable, learning_rate)


def make_optimizer(spec: JobSpec, variables: list[Any]) -> Any:
    """Built for ``variables``; with loss scaling around it under fp16.

    Raises:
        RequestError: a pattern of ``optimizer.no_decay`` matches no variable.
    """
    o = spec.optimizer
    by_name = named(variables)
    chosen = selected(by_name, o.no_decay, "optimizer.no_decay")
    without = [by_name[name] for name in sorted(chosen)]
    if o.name == "adamw":
        optimizer: Any = keras.optimizers.AdamW(
            o.lr,
            beta_1=o.betas[0],
            beta_2=o.betas[1],
            epsilon=o.eps,
            weight_decay=o.weight_decay,
            global_clipnorm=o.clip_norm,
        )
        optimizer.exclude_from_weight_decay(var_list=without)
    else:
        optimizer = SGD(
            o.weight_decay,
            learning_rate=o.lr,
            momentum=o.momentum,
            nesterov=o.nesterov and o.momentum > 0,
            global_clipnorm=o.clip_norm,
        )
        optimizer.spared = {number for number, name in enumerate(by_name) if name in chosen}
    if spec.precision == "fp16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer
