"""Staging: tensors as flat host memory for the engine, and their way there and back."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlrun.allreduce.communicator import Buffer, DType

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}


class Staged:
    """One or more tensors of one operation as one flat host buffer. This one is host memory as it is.

    The life of one: issued on the thread that calls the collective, which never waits for the device;
    ``ready`` on the lane's thread; reduced by the engine; ``publish``; ``order`` where somebody goes on with
    the tensors; ``end``.
    """

    waits = False
    """Whether ``ready`` may have to wait."""

    anywhere = True
    """Whether ``publish`` may run on any thread. Two threads must not encode for one Metal device."""

    def __init__(self, tensors: Sequence[Tensor], host: Tensor) -> None:
        self.tensors = tensors
        self.host = host
        self.ended = False

    def buffer(self, *, bytewise: bool = False) -> Buffer:
        """The memory as the engine sees it; ``bytewise`` for calls that only move data, whatever its type.

        Raises:
            TypeError: no engine reduces this type.
        """
        host = self.host
        if bytewise and host.dtype not in _DTYPES:
            return Buffer(host.data_ptr(), host.numel() * host.element_size(), DType.UINT8, self)
        if host.dtype not in _DTYPES:
            raise TypeError(f"backend mlrun doesn't reduce tensors of {host.dtype}")
        return Buffer(host.data_ptr(), host.numel(), _DTYPES[host.dtype], self)

    def ready(self) -> None:
        """Block, without the GIL, until the device has done with ``host``. Makes no other device call."""

    def publish(self) -> None:
        """Bring ``host``'s content into the tensors, or start to."""

    def order(self) -> None:
        """What the calling thread issues to the device from now on sees what was published."""

    def end(self) -> None:
        """Neither the engine nor the device uses ``host`` any more."""
        self.ended = True

    def future(self) -> torch.futures.Future[Any]:
        """A future for results in these tensors."""
        return torch.futures.Future()

    def completing(self) -> contextlib.AbstractContextManager[object]:
        """The context in which that future gets its value."""
        return contextlib.nullcontext()


class Copied(Staged):
    """A copy of the tensors, made and brought back by whoever asks. Waits for the device to do it."""

    def __init__(self, tensors: Sequence[Tensor], *, read: bool) -> None:
        super().__init__(tensors, _gathered(tensors) if read else _room_for(tensors))
        self.anywhere = all(t.device.type == "cpu" for t in tensors)

    def publish(self) -> None:
        for tensor, part in zip(self.tensors, self.parts(), strict=True):
            tensor.detach().copy_(part)

    def parts(self) -> list[Tensor]:
        return split(self.host, self.tensors)


class Staging(ABC):
    """How tensors of one device meet the engine."""

    @abstractmethod
    def issue(self, tensors: Sequence[Tensor], *, read: bool = True) -> Staged:
        """``read``: the engine reads what the tensors hold, and doesn't only write to them."""


class HostStaging(Staging):
    """CPU tensors: in place where a single contiguous one is given."""

    def issue(self, tensors: Sequence[Tensor], *, read: bool = True) -> Staged:
        if len(tensors) == 1 and tensors[0].is_contiguous():
            return Staged(tensors, tensors[0].detach())
        return Copied(tensors, read=read)


class CopyStaging(Staging):
    """Tensors of any device, without overlap: the safe way."""

    def issue(self, tensors: Sequence[Tensor], *, read: bool = True) -> Staged:
        return Copied(tensors, read=read)


def split(host: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """``host`` as one view per tensor, in the tensor's shape."""
    parts = torch.split(host, [t.numel() for t in tensors])
    return [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]


def _gathered(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().cpu().flatten() for t in tensors])


def _room_for(tensors: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)
