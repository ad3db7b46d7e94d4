"""Which samples each rank sees at each step, as a function of (seed, step) alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Sampler:
    """Each epoch is one permutation, cut into global batches, each cut into consecutive parts by rank.

    So any number of ranks with the same global batch sees the same samples at a step, each sample once per
    epoch. The last batch of an epoch may be smaller; ranks then get parts in proportion, down to none.
    """

    samples: int
    shares: tuple[int, ...]
    """``shares[r]``: samples of rank r in a full optimizer step."""
    seed: int

    @property
    def global_batch(self) -> int:
        return sum(self.shares)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.global_batch)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def batch(self, step: int) -> Indices:
        """The samples of all ranks at ``step``, shape (at most ``global_batch``,)."""
        start = step % self.steps_per_epoch * self.global_batch
        return _permutation(self.samples, self.seed, self.epoch(step))[start : start + self.global_batch]

    def part(self, step: int, rank: int) -> Indices:
        """The samples of ``rank`` at ``step``; may be empty in an epoch's last step."""
        whole = self.batch(step)
        ends = [0, *(len(whole) * end // self.global_batch for end in accumulate(self.shares))]
        return whole[ends[rank] : ends[rank + 1]]

    def micro_batches(self, step: int, rank: int, count: int) -> list[Indices]:
        """``part`` cut into ``count`` pieces for accumulation, empty ones left out."""
        return [piece for piece in np.array_split(self.part(step, rank), count) if len(piece)]


def even_shares(total: int, ranks: int) -> tuple[int, ...]:
    """``total`` samples over ``ranks``; the first ones take what is left over."""
    return tuple(total // ranks + (rank < total % ranks) for rank in range(ranks))


def cut(samples: int, ranks: int, rank: int) -> range:
    """The consecutive part of ``range(samples)`` that ``rank`` of ``ranks`` evaluates."""
    return range(samples * rank // ranks, samples * (rank + 1) // ranks)


def hold_out(samples: int, share: float | None, seed: int) -> tuple[Indices, Indices]:
    """(kept, held out), both sorted; nothing is held out for ``share`` None."""
    order = np.random.default_rng((seed, samples)).permutation(samples)
    count = round(samples * share) if share else 0
    return np.sort(order[count:]), np.sort(order[:count])


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)
