"""What travels of a tensor: itself, or float16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """Changes nothing. Scripts may give their own class with these two methods."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What travels, and what ``decompress`` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return tensor


class Float16(Compressor):
    """Floating-point tensors travel, and are summed, in float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return (tensor.half(), tensor.dtype) if tensor.is_floating_point() else (tensor, None)

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return tensor.to(context) if isinstance(context, torch.dtype) else tensor


class Compression:
    """Horovod's names of the two."""

    none = Compressor
    fp16 = Float16
