"""``hvd.elastic`` of Keras scripts."""

from __future__ import annotations

from mlrun.horovod.elastic import run
from mlrun.horovod.tensorflow.elastic import TensorFlowKerasState as KerasState

__all__ = ["KerasState", "run"]
