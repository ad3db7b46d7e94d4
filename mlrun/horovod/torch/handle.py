"""Calls under way, and calls through which gradients flow back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.backends.torch.process_group import MlrunProcessGroup
from mlrun.horovod.world import World, world

List = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Handle:
    """Calls under way, and what turns their results into what the caller gets."""

    def __init__(self, works: Sequence[dist.Work], result: Callable[[], Any]) -> None:
        self._works = works
        self._result = result

    def done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """The result, once it is there.

        Raises:
            CommunicatorError: a call failed; the message names ranks.
        """
        for work in self._works:
            work.wait()
        with torch.no_grad():
            return self._result()

    def then(self, change: Callable[[Any], Any]) -> Handle:
        """The same calls, with another result."""
        return Handle(self._works, lambda: change(self._result()))


def poll(handle: Handle) -> bool:
    """Whether ``synchronize`` would return at once."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """The result of an asynchronous call, once it is there."""
    return handle.wait()


def group() -> MlrunProcessGroup:
    """All ranks, for tensors."""
    return _group_over(world())


@functools.lru_cache(maxsize=1)
def _group_over(of_all: World) -> MlrunProcessGroup:
    return MlrunProcessGroup(of_all.communicator)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: List, gradients: List, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        return tuple(run([tensor.detach() for tensor in tensors]))

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        return None, None, *ctx.gradients(given)


def through(run: List, gradients: List, tensors: Sequence[Tensor]) -> list[Tensor]:
    """``run(tensors)``; ``gradients`` gives the inputs' gradients for the outputs'."""
    return list(_Through.apply(run, gradients, *tensors))  # type: ignore[no-untyped-call]
