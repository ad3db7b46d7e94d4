"""Where the time of the steps went, between two reports and over the whole run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mlrun.backends.base import StepResult

WARM_UP_STEPS = 3
"""Steps that don't count for the steady rate: compilation, caches, first allocations."""


@dataclass(slots=True)
class Split:
    """A stretch of steps. ``seconds = data_s + compute_s + comm_s``: what no one claims is compute."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    data_s: float = 0.0
    comm_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return max(0.0, self.seconds - self.data_s - self.comm_s)

    def add(self, result: StepResult, seconds: float, waited_s: float) -> None:
        self.steps += 1
        self.samples += result.samples
        self.seconds += seconds
        self.data_s += result.data_s
        self.comm_s += result.comm_s + waited_s


class Meter:
    """Measures steps by the host's clock; evaluation, saving and hashing lie outside of it."""

    def __init__(self) -> None:
        self.recent = Split()
        """Since the last report."""
        self.total = Split()
        self._steady = Split()

    def add(self, result: StepResult, seconds: float, waited_s: float) -> None:
        """One step of ``seconds`` in all, ``waited_s`` of them in the loop's own wait for peers."""
        if self.total.steps >= WARM_UP_STEPS:
            self._steady.add(result, seconds, waited_s)
        self.total.add(result, seconds, waited_s)
        self.recent.add(result, seconds, waited_s)

    def take_recent(self) -> Split:
        recent, self.recent = self.recent, Split()
        return recent

    def extend(self, seconds: float) -> None:
        """Time that belongs to the steps already added: the device was still computing them."""
        splits = [self.recent, self.total]
        if self._steady.steps:
            splits.append(self._steady)
        for split in splits:
            split.seconds += seconds

    def samples_per_second(self) -> float | None:
        """The steady rate of this rank; None where the run was too short to have one."""
        return self._steady.samples / self._steady.seconds if self._steady.seconds > 0 else None


class Every:
    """True at most once per period."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._seconds

    def restart(self) -> None:
        self._last = time.monotonic()
