"""mlrun's stand-in for horovod.tensorflow: docs/horovod.md."""

from typing import NoReturn

from mlrun.horovod.common import *
from mlrun.horovod.keras.optimizer import DistributedOptimizer
from mlrun.horovod.tensorflow import elastic
from mlrun.horovod.tensorflow.calls import (
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    grouped_allreduce,
    join,
    reducescatter,
)
from mlrun.horovod.tensorflow.compression import Compression
from mlrun.horovod.tensorflow.gradients import DistributedGradientTape


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"mlrun's stand-in for horovod.tensorflow has no {name}: docs/horovod.md lists what it has"
    )
