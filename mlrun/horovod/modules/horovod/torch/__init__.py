"""mlrun's stand-in for horovod.torch: docs/horovod.md."""

from typing import NoReturn

from mlrun.horovod.common import *
from mlrun.horovod.torch import elastic
from mlrun.horovod.torch.compression import Compression
from mlrun.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from mlrun.horovod.torch.handle import poll, synchronize
from mlrun.horovod.torch.moves import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    join,
)
from mlrun.horovod.torch.optimizer import DistributedOptimizer
from mlrun.horovod.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    reducescatter,
    reducescatter_async,
)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"mlrun's stand-in for horovod.torch has no {name}: docs/horovod.md lists what it has"
    )
