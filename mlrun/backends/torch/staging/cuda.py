"""CUDA tensors through pinned host memory, on streams beside the one that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlrun.backends.torch.staging.base import Staged, Staging, split


class CudaStaging(Staging):
    """Copies out and back run on a side stream each, so that neither waits for the other's turn."""

    def __init__(self, device: torch.device) -> None:
        self._out = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._back = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def issue(self, tensors: Sequence[Tensor], *, read: bool = True) -> Staged:
        return _Pinned(tensors, self._out, self._back, read=read)


class _Pinned(Staged):
    waits = True

    def __init__(
        self, tensors: Sequence[Tensor], out: torch.cuda.Stream, back: torch.cuda.Stream, *, read: bool
    ) -> None:
        count = sum(t.numel() for t in tensors)
        super().__init__(tensors, torch.empty(count, dtype=tensors[0].dtype, pin_memory=True))
        self._back = back
        self._here = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._back_again = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Where nothing is read, the event still says when earlier work on the tensors is over.
        out.wait_stream(torch.cuda.current_stream(out.device))
        with torch.cuda.stream(out):
            if read:
                for tensor, part in zip(tensors, split(self.host, tensors), strict=True):
                    part.copy_(tensor.detach(), non_blocking=True)
            self._here.record()
        # A tensor dropped early must not be handed out again while a side stream works on it.
        for tensor in tensors:
            tensor.record_stream(out)
            tensor.record_stream(back)

    def ready(self) -> None:
        self._here.synchronize()

    def publish(self) -> None:
        with torch.cuda.stream(self._back):
            for tensor, part in zip(self.tensors, split(self.host, self.tensors), strict=True):
                tensor.detach().copy_(part, non_blocking=True)
            self._back_again.record()

    def order(self) -> None:
        torch.cuda.current_stream(self._back.device).wait_event(self._back_again)

    def future(self) -> torch.futures.Future[Any]:
        """Whoever waits for it has its stream wait for the copy back: see ``completing``."""
        return torch.futures.Future(devices=[self._back.device])

    def completing(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._back)
