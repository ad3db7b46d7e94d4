"""MPS tensors in place: the ring reads and writes the unified memory that the GPU computed in.

Rules, each of which has cost somebody wrong gradients:

- The issuing thread records an event behind the work that fills the tensor. Nobody touches the memory
  before that event: a command buffer in flight would be read half done, or write over the result.
- The ring's side calls nothing of Metal but that event's ``synchronize``, which needs no stream and holds no
  lock of Python's (torch 2.13 and later). ``torch.mps.synchronize`` would race with the training thread's
  encoding, and a copy would keep it from encoding until the GPU has drained.
- A tensor's address comes from its host alias, never from ``data_ptr()``: that was an object's address.
- Work encoded after the future's completion sees what the ring wrote: nothing that reads the tensor may be
  encoded before.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlrun.backends.torch.staging.base import Copied, Staged, Staging


class MpsStaging(Staging):
    """``metal`` is ``torch.mps``."""

    def __init__(self, metal: Any = torch.mps) -> None:
        self._metal = metal
        self._in_flight: deque[_Fenced] = deque()

    def issue(self, tensors: Sequence[Tensor], *, read: bool = True) -> Staged:
        # Events and aliases are given back here, on the thread that encodes, and not where a work ends.
        while self._in_flight and self._in_flight[0].ended:
            self._in_flight.popleft().forget()
        if len(tensors) > 1 or not tensors[0].is_contiguous() or not tensors[0].numel():
            return Copied(tensors, read=read)
        try:
            alias = self._metal._host_alias_storage(tensors[0].untyped_storage())
        except RuntimeError as error:
            warnings.warn(f"a tensor goes to the ring by a copy, without overlap: {error}", stacklevel=2)
            return Copied(tensors, read=read)
        staged = _Fenced(tensors, _view(tensors[0], alias), self._metal.Event())
        self._in_flight.append(staged)
        return staged


class _Fenced(Staged):
    waits = True

    def __init__(self, tensors: Sequence[Tensor], host: Tensor, fence: Any) -> None:
        super().__init__(tensors, host)
        self._fence = fence
        fence.record()

    def ready(self) -> None:
        self._fence.synchronize()

    def forget(self) -> None:
        """Give event and alias back."""
        self._fence = None
        self.tensors, self.host = (), torch.empty(0)


def _view(tensor: Tensor, alias: torch.UntypedStorage) -> Tensor:
    host = torch.empty(0, dtype=tensor.dtype)
    host.set_(alias, tensor.storage_offset(), (tensor.numel(),), (1,))
    return host
