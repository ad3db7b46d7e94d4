"""Communication hooks that can't work: those that start collectives inside a future's callback."""

from __future__ import annotations

import sys
from types import FrameType

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_REFUSED = (f"{_HOOKS}.powerSGD_hook", f"{_HOOKS}.quantization_hooks")
_DEPTH = 12
"""Frames from a hook to the process group, at most: c10d's wrappers lie between."""


def check(*, in_callback: bool) -> None:
    """Called as a collective starts; ``in_callback``: on the thread that completes futures.

    A hook of the list above is refused at its first bucket, on every rank, and not only where it happens to
    call from a callback.

    Raises:
        NotImplementedError: the caller is such a hook; the message names it.
    """
    if not in_callback and not any(module in sys.modules for module in _REFUSED):
        return
    name = _refused_caller()
    if name is None and in_callback:
        name = "a communication hook"
    if name is not None:
        raise NotImplementedError(
            f"{name} starts collectives inside callbacks of others, which ranks run in orders of their own: "
            "gradients would be mixed without an error. Register no hook, or to send less, set "
            "allreduce.wire_dtype: bf16 in a spec"
        )


def _refused_caller() -> str | None:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        module = frame.f_globals.get("__name__")
        if module in _REFUSED:
            return f"the communication hook of {module.rpartition('.')[2]}.py ({frame.f_code.co_name})"
        frame = frame.f_back
    return None
