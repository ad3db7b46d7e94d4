"""Horovod's callbacks for ``model.fit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from mlrun.allreduce.communicator import Op
from mlrun.horovod import arrays
from mlrun.horovod.world import rank, size


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """All ranks begin with ``root_rank``'s weights and optimizer state."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self._root = root_rank
        self._local = {id(variable) for variable in local_variables or ()}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        for variable in [*self.model.weights, *self.model.optimizer.variables]:
            if id(variable) not in self._local:
                variable.assign(arrays.broadcast(variable.numpy(), self._root))


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """An epoch's metrics become their means over the ranks, for the callbacks behind this one."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs:
            names = sorted(logs)
            means = arrays.all_reduce(np.array([float(logs[name]) for name in names]), Op.AVERAGE)
            logs.update(zip(names, means.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """The rate is ``initial_lr * multiplier(epoch)`` in epochs [``start_epoch``, ``end_epoch``).

    ``multiplier`` may be a number, to the power of the epochs since ``start_epoch``. With ``staircase`` the
    rate changes once per epoch, else each batch, with fractions of an epoch. ``momentum_correction`` changes
    nothing: Keras 3 builds momentum into its graph as a constant.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._initial, self._start, self._end = initial_lr, start_epoch, end_epoch
        self._multiplier = (
            multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self._staircase, self._steps = staircase, steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._steps = self._steps or self.params.get("steps")
        if not self._staircase and not self._steps:
            raise ValueError("how many steps an epoch has isn't known: give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        within = self._start <= self._epoch and (self._end is None or self._epoch < self._end)
        if within and (batch == 0 or not self._staircase):
            part = 0.0 if self._staircase else batch / (self._steps or 1)
            self.model.optimizer.learning_rate = self._initial * self._multiplier(self._epoch + part)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From ``initial_lr / size()`` to ``initial_lr`` over the first epochs, a little with each batch."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._factor,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._warmup, self._verbose = warmup_epochs, verbose

    def _factor(self, epoch: float) -> float:
        """At the end of the last batch of the warm-up it is 1."""
        done = epoch + 1 / (self._steps or 1)
        return (1 + done * (size() - 1) / self._warmup) / size()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup - 1 and self._verbose and rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: learning rate warmed up to {rate:g}")
