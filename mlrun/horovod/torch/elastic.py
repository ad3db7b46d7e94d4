"""``hvd.elastic`` of torch scripts."""

from __future__ import annotations

from typing import Any

from mlrun.horovod.elastic import State, run
from mlrun.horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState", "run"]


class TorchState(State):
    """A model, an optimizer, and other values of the training's state."""

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        super().__init__(broadcast_object, **values)
        self.model, self.optimizer = model, optimizer

    def sync(self) -> None:
        if self.model is not None:
            broadcast_parameters(self.model.state_dict(), root_rank=0)
        if self.optimizer is not None:
            broadcast_optimizer_state(self.optimizer, root_rank=0)
        super().sync()
