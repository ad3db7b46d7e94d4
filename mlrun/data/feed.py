"""The batches of one rank, step by step, made ahead of time where the split can."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from mlrun.data.sampler import Indices, Sampler
from mlrun.errors import RunFailedError


class Zeroable(Protocol):
    """A batch of a framework."""

    @property
    def count(self) -> int:
        """Samples in it."""
        ...

    def zeroed(self: B) -> B:
        """The same shapes and types, all zero."""
        ...


B = TypeVar("B", bound=Zeroable)
Made_co = TypeVar("Made_co", covariant=True)


class Batches(Protocol[Made_co]):
    """What a split of a framework can do."""

    def fetch(self, indices: Indices, epoch: int) -> Made_co:
        """Samples ``indices`` as they are in ``epoch``, made here and now."""
        ...

    def stream(self, batches: Iterable[tuple[int, Indices]]) -> Iterator[Made_co]:
        """One batch for each (epoch, indices)."""
        ...


class Feed(Generic[B]):
    """Hands out the micro-batches of each step. A step out of order starts the stream anew from there.

    ``place`` brings a batch to where it is computed on.
    """

    def __init__(
        self, split: Batches[B], sampler: Sampler, *, rank: int, accumulation: int, place: Callable[[B], B]
    ) -> None:
        self._split = split
        self._sampler = sampler
        self._rank = rank
        self._accumulation = accumulation
        self._place = place
        self._next_step = -1
        self._stream: Iterator[B] = iter(())

    def take(self, step: int) -> list[B]:
        """The micro-batches of ``step``; none where this rank has no samples."""
        if step != self._next_step:
            self._stream = self._split.stream(self._batches_from(step))
        self._next_step = step + 1
        return [self._place(next(self._stream)) for _ in self._micro_batches(step)]

    def again(self, step: int) -> list[B]:
        """The same as ``take(step)`` once more, without moving on."""
        epoch = self._sampler.epoch(step)
        return [self._place(self._split.fetch(part, epoch)) for part in self._micro_batches(step)]

    def empty(self) -> B:
        """One sample of zeros, for a step in which this rank has none that can be read.

        Raises:
            RunFailedError: none of all samples can be read.
        """
        for index in range(self._sampler.samples):
            batch = self._split.fetch(np.array([index], dtype=np.int64), 0)
            if batch.count:
                return self._place(batch).zeroed()
        raise RunFailedError("no training sample can be read", fix="repair the data")

    def _micro_batches(self, step: int) -> list[Indices]:
        return self._sampler.micro_batches(step, self._rank, self._accumulation)

    def _batches_from(self, start: int) -> Iterator[tuple[int, Indices]]:
        for step in itertools.count(start):
            for part in self._micro_batches(step):
                yield self._sampler.epoch(step), part
