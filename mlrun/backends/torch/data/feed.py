"""The batches of one rank, step by step, made ahead of time where loader workers read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from mlrun.backends.torch.data.splits import Batch, Split
from mlrun.data.sampler import Indices, Sampler


class Feed:
    """Hands out the micro-batches of each step. A step out of order starts the stream anew from there."""

    def __init__(
        self,
        split: Split,
        sampler: Sampler,
        *,
        rank: int,
        accumulation: int,
        device: torch.device,
    ) -> None:
        self._split = split
        self._sampler = sampler
        self._rank = rank
        self._accumulation = accumulation
        self._device = device
        self._next_step = -1
        self._stream: Iterator[Batch] = iter(())

    def take(self, step: int) -> list[Batch]:
        """The micro-batches of ``step`` on the device; none where this rank has no samples."""
        if step != self._next_step:
            self._stream = self._split.stream(self._batches_from(step))
        self._next_step = step + 1
        return [next(self._stream).to(self._device) for _ in self._micro_batches(step)]

    def again(self, step: int) -> list[Batch]:
        """The same as ``take(step)`` once more, without moving on."""
        epoch = self._sampler.epoch(step)
        return [self._split.fetch(part, epoch).to(self._device) for part in self._micro_batches(step)]

    def empty(self) -> Batch:
        """One sample of zeros, for a step in which this rank has none."""
        return self._split.fetch(np.zeros(1, dtype=np.int64), 0).to(self._device).zeroed()

    def _micro_batches(self, step: int) -> list[Indices]:
        return self._sampler.micro_batches(step, self._rank, self._accumulation)

    def _batches_from(self, start: int) -> Iterator[tuple[int, Indices]]:
        for step in itertools.count(start):
            for part in self._micro_batches(step):
                yield self._sampler.epoch(step), part
