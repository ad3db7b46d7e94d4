"""Where tensors meet the engine: flat host memory, in place where the tensor already lies there."""

from __future__ import annotations

from collections.abc import Sequence

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
    """One or more tensors as one flat host buffer.

    A single contiguous CPU tensor is used in place. Anything else is copied on the thread that stages it, and
    copied back by ``write_back``, on the thread that calls that.
    """

    def __init__(self, tensors: Sequence[Tensor], *, read: bool = True) -> None:
        self._tensors = tensors
        first = tensors[0]
        self.on_device = any(t.device.type != "cpu" for t in tensors)
        self._in_place = len(tensors) == 1 and not self.on_device and first.is_contiguous()
        if self._in_place:
            self.host = first.detach()
        elif read:
            self.host = torch.cat([t.detach().cpu().flatten() for t in tensors])
        else:
            self.host = torch.empty(sum(t.numel() for t in tensors), dtype=first.dtype)

    def buffer(self, *, bytewise: bool = False) -> Buffer:
        """The memory as the engine sees it; ``bytewise`` for calls that only move data, whatever its type.

        Raises:
            TypeError: no engine reduces this type.
        """
        host = self.host
        if bytewise and host.dtype not in _DTYPES:
            return Buffer(host.data_ptr(), host.numel() * host.element_size(), DType.UINT8, host)
        if host.dtype not in _DTYPES:
            raise TypeError(f"backend mlrun doesn't reduce tensors of {host.dtype}")
        return Buffer(host.data_ptr(), host.numel(), _DTYPES[host.dtype], host)

    def write_back(self) -> None:
        """Bring the buffer's content into the tensors, where they are elsewhere."""
        if self._in_place:
            return
        parts = torch.split(self.host, [t.numel() for t in self._tensors])
        for tensor, part in zip(self._tensors, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))
