"""mlrun's stand-in for horovod.keras: docs/horovod.md."""

from typing import NoReturn

from mlrun.horovod.common import *
from mlrun.horovod.keras import callbacks, elastic
from mlrun.horovod.keras.optimizer import DistributedOptimizer, load_model
from mlrun.horovod.tensorflow.calls import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    reducescatter,
)
from mlrun.horovod.tensorflow.compression import Compression


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"mlrun's stand-in for horovod.keras has no {name}: docs/horovod.md lists what it has"
    )
