"""How gradients become the same on every rank: not at all (alone), during the backward pass, or after it."""

from __future__ import annotations

import contextlib
import inspect
import time
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mlrun.allreduce.communicator import DType
from mlrun.backends.base import Span
from mlrun.backends.torch import checkpoint, replicas
from mlrun.backends.torch.process_group import MlrunProcessGroup
from mlrun.backends.torch.work import GroupWork
from mlrun.spec.cluster import AllReduce

_WIRE = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, None: None}
_MIB = 1 << 20


class GradientSync(ABC):
    """Sums gradients over ranks. Losses are weighted before, so that the sum is the mean over all samples."""

    module: nn.Module
    """What forward passes go through."""

    def __init__(self) -> None:
        self._pending: list[GroupWork] = []
        self._works: list[GroupWork] = []

    def local(self) -> contextlib.AbstractContextManager[None]:
        """Inside, gradients only add up on this rank."""
        return contextlib.nullcontext()

    @abstractmethod
    def finish(self) -> float:
        """After the last backward pass: gradients are reduced on return. Seconds only spent waiting."""

    def computed_at(self) -> float | None:
        """When the last backward pass had no more work of its own and only waited; None: it didn't wait."""
        return None

    def error(self) -> Exception | None:
        """The communicator's error in this step, if any: what comes out of backward() is only its text."""
        return next((e for e in (work.exception() for work in self._pending) if e is not None), None)

    def spans(self) -> list[Span]:
        """When each bucket of the last step travelled."""
        times = [(index, work.times()) for index, work in enumerate(self._works)]
        return [Span(f"all_reduce:{index}", *interval) for index, interval in times if interval is not None]


class Alone(GradientSync):
    """One rank: nothing to do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def finish(self) -> float:
        return 0.0


class Overlapped(GradientSync):
    """DistributedDataParallel: a bucket travels as soon as its last gradient is there.

    Exposed time is what the issuing thread was held for (by copies without overlap), and from when the last
    bucket was issued and computed, so that the backward pass has no more work of its own, until the last one
    has come back.
    """

    def __init__(self, model: nn.Module, group: MlrunProcessGroup, settings: AllReduce) -> None:
        super().__init__()
        self._group = group
        self._wire = _WIRE[settings.wire_dtype]
        self._held = 0.0
        self._issued = 0.0
        wrapped = DistributedDataParallel(
            model,
            process_group=group,
            bucket_cap_mb=settings.bucket_mb,
            gradient_as_bucket_view=True,
            **_without_buffer_broadcast(),
        )
        # A lambda, since DDP takes annotations that are strings for wrong ones.
        wrapped.register_comm_hook(None, lambda _, bucket: self._reduce_bucket(bucket))
        self.module = wrapped

    def local(self) -> contextlib.AbstractContextManager[None]:
        assert isinstance(self.module, DistributedDataParallel)
        return self.module.no_sync()

    def _reduce_bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        entered = time.monotonic()
        name = f"gradient bucket {bucket.index()}"
        work = self._group.reduce_bucket(bucket.buffer(), self._wire, name)
        self._pending.append(work)
        future = work.bucket_future()
        self._issued = time.monotonic()
        self._held += self._issued - entered
        return future

    def computed_at(self) -> float | None:
        return self._computed(self._pending) if self._pending else None

    def _computed(self, works: list[GroupWork]) -> float:
        """A GPU computes on for a while after the last bucket was issued."""
        ready = [at for at in (work.ready_at() for work in works) if at is not None]
        return max([self._issued, *ready])

    def finish(self) -> float:
        self._works, self._pending = self._pending, []
        held, self._held = self._held, 0.0
        for work in self._works:
            work.wait()
        ends = [work.settled_at for work in self._works if work.settled_at is not None]
        computed = self._computed(self._works)
        return held + max(0.0, max(ends, default=computed) - computed)


def _without_buffer_broadcast() -> dict[str, Any]:
    """Buffers are made to agree when somebody looks at them, not at every forward pass."""
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers": False}


class AfterBackward(GradientSync):
    """Buckets travel once the backward pass is over: all communication is exposed.

    Like DistributedDataParallel it starts from rank 0's parameters and buffers.
    """

    def __init__(self, model: nn.Module, group: MlrunProcessGroup, settings: AllReduce) -> None:
        super().__init__()
        self.module = model
        self._group = group
        self._wire = _WIRE[settings.wire_dtype]
        parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        replicas.copy_from_first(group, list(checkpoint.named_tensors(model).values()))
        self._buckets = _buckets(parameters, int(settings.bucket_mb * _MIB))

    def finish(self) -> float:
        start = time.monotonic()
        gradients = [[_gradient(p) for p in bucket] for bucket in self._buckets]
        flat = [torch.cat([g.flatten() for g in bucket]) for bucket in gradients]
        self._works = [
            self._group.reduce_bucket(bucket, self._wire, f"gradient bucket {index}")
            for index, bucket in enumerate(flat)
        ]
        for work, reduced, bucket in zip(self._works, flat, gradients, strict=True):
            work.wait()
            parts = torch.split(reduced, [g.numel() for g in bucket])
            torch._foreach_copy_(bucket, [p.view_as(g) for p, g in zip(parts, bucket, strict=True)])
        return time.monotonic() - start


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(parameters: list[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    """``parameters`` in order, cut where a bucket would pass ``limit`` bytes or change its type."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not buckets or size + parameter.nbytes > limit or buckets[-1][-1].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets
