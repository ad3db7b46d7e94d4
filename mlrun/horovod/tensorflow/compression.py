"""What travels of a tensor: itself, or float16."""

from __future__ import annotations


class Compression:
    """Horovod's names of the two. With ``fp16`` float32 travels in float16, and is summed in float32."""

    none = "none"
    fp16 = "fp16"
