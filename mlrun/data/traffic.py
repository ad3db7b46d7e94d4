"""What one rank, with its loader processes, got from elsewhere and what from its host's cache."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start."""

    bytes_fetched: int
    files_fetched: int
    files_cached: int


class Traffic:
    """Counters in shared memory: they travel to loader processes as these are started."""

    def __init__(self) -> None:
        self._counts = multiprocessing.get_context("spawn").Array("q", 3)

    @property
    def _plain(self) -> Any:
        """The counters without the lock that is taken for each of them, for who holds it already."""
        return self._counts.get_obj()

    def fetched(self, count: int) -> None:
        """A file of ``count`` bytes came from elsewhere."""
        with self._counts.get_lock():
            self._plain[0] += count
            self._plain[1] += 1

    def cached(self) -> None:
        """A file was in the cache."""
        with self._counts.get_lock():
            self._plain[2] += 1

    def counts(self) -> Counts:
        with self._counts.get_lock():
            return Counts(self._counts[0], self._counts[1], self._counts[2])
