"""``hvd.elastic`` of TensorFlow scripts."""

from __future__ import annotations

from typing import Any

from mlrun.horovod.elastic import State, run
from mlrun.horovod.tensorflow.calls import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(State):
    """Variables, and other values of the training's state."""

    def __init__(self, variables: Any = None, session: Any = None, **values: Any) -> None:
        super().__init__(broadcast_object, **values)
        self.variables = list(variables or ())

    def sync(self) -> None:
        broadcast_variables(self.variables, root_rank=0)
        super().sync()


class TensorFlowKerasState(TensorFlowState):
    """A Keras model with its optimizer, and other values of the training's state."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:
        super().__init__(**values)
        self.model, self.optimizer = model, optimizer or model.optimizer

    def sync(self) -> None:
        self.variables = [*self.model.variables, *self.optimizer.variables]
        super().sync()
