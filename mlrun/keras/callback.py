"""What ranks that train with ``model.fit`` must agree on besides gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, Op, Work
from mlrun.allreduce.own import own


class BroadcastCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """All ranks begin with rank 0's weights, and share BatchNorm's statistics.

    Statistics are averaged before each validation and at the end of each epoch. Put it in front of callbacks
    that save the model. All ranks must train and validate alike.

    ``communicator``: by default the group of all ranks of the run that started this script.

    Raises:
        RequestError: there is neither.
    """

    def __init__(self, communicator: Communicator | None = None) -> None:
        super().__init__()
        self._communicator = communicator or own()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Copy rank 0's weights and optimizer state to every rank."""
        variables = [*self.model.weights, *self.model.optimizer.variables]
        _in_place(variables, lambda buffer, name: self._communicator.broadcast(buffer, 0, name))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._average_statistics()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._average_statistics()

    def _average_statistics(self) -> None:
        statistics = [v for v in self.model.non_trainable_weights if "float" in v.dtype]
        _in_place(
            statistics, lambda buffer, name: self._communicator.all_reduce(buffer, Op.AVERAGE, name=name)
        )


def _in_place(variables: Sequence[Any], collective: Callable[[Buffer, str], Work]) -> None:
    for variable in variables:
        value = np.array(variable.numpy(), order="C")
        collective(Buffer.of(value.reshape(-1)), variable.path).wait()
        variable.assign(value)
