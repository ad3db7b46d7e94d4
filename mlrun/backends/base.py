"""Backend: what the training loop asks of a framework. The loop knows nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlrun.allreduce.communicator import Communicator
from mlrun.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """The plan of the training, once model and data are built. The same on every rank but ``batch_size``."""

    steps_per_epoch: int
    steps_total: int
    batch_size: int
    """Samples of this rank per optimizer step (accumulation included)."""
    global_batch_size: int
    """Samples of all ranks per optimizer step."""
    train_samples: int
    validation_samples: int
    parameters: int
    data_fingerprint: str
    """Hash over the dataset's size, classes and a sample of its content; must agree between ranks."""
    device: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step of this rank. Seconds are wall time and don't overlap each other."""

    samples: int
    data_s: float
    compute_s: float
    comm_s: float
    """Exposed communication: this rank only waited for its peers."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval on ``time.monotonic()``'s clock, for the timeline."""

    name: str
    """data, forward, backward (own work), wait (for the last buckets), optimizer, or all_reduce:<bucket>"""
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics over the whole validation set, already summed over ranks."""

    metrics: dict[str, float]
    samples: int


class Backend(ABC):
    """One framework training one model on one rank.

    Life: ``build`` once, then ``step`` for each global step; ``evaluate``, ``save``, ``load`` between steps.
    A changed membership is ``rebind``: no graph or trace may hold the world size as a constant.
    """

    unit: str
    """What one sample is: "images", "sequences", "samples"."""

    @abstractmethod
    def build(self, spec: JobSpec, communicator: Communicator | None, local_rank: int) -> Shape:
        """Make model, data and optimizer. ``communicator`` is None for world size 1.

        Raises:
            RequestError: the spec asks for something this machine or framework doesn't have.
        """

    @abstractmethod
    def rebind(self, communicator: Communicator | None) -> Shape:
        """Go on with another membership; parameters are those of the new rank 0."""

    @abstractmethod
    def step(self, step: int) -> StepResult:
        """Global optimizer step ``step`` (from 0); its data follow from (seed, epoch, step, rank, size)."""

    @abstractmethod
    def loss(self) -> float | None:
        """Mean training loss of the last step over the samples of all ranks. Collective; reads the device.

        None where nothing is learnt.
        """

    @abstractmethod
    def applied(self) -> bool:
        """False where the last step's reduced gradient wasn't finite, so that no update was made.

        The same on every rank without a message. ``on_nonfinite: ignore`` always applies.
        """

    @abstractmethod
    def nonfinite(self) -> str | None:
        """What of this rank's *own* last step wasn't finite ("loss", "gradient of fc.weight"), or None.

        Local. Called after a step that wasn't applied, to name the rank it came from; may compute again.
        """

    @abstractmethod
    def spans(self) -> list[Span]:
        """Intervals of the last step: data, forward, backward, optimizer, and one per all-reduced bucket."""

    @abstractmethod
    def learning_rate(self) -> float: ...

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Metrics on the validation set. Collective. BatchNorm statistics agree between ranks before it."""

    def agree(self) -> None:
        """Make what ranks keep for themselves (BatchNorm statistics) the same everywhere. Collective.

        ``evaluate`` does it by itself; the loop calls it before ``state_hash`` and ``save``.
        """
        return

    def left_out(self) -> Sequence[str]:
        """What this rank left out so far by ``data.on_bad_file: skip``, each in a sentence."""
        return ()

    @abstractmethod
    def state_hash(self) -> str:
        """Hash of this rank's parameters and buffers (hex). Equal hashes: bit-identical replicas."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write parameters, optimizer and schedule into an existing empty folder (rank 0 only)."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            RequestError: made for another model.
        """

    @abstractmethod
    def versions(self) -> dict[str, Any]:
        """Framework, device name and thread count for the summary."""

    @abstractmethod
    def close(self) -> None:
        """Stop loader workers and free what the framework holds."""
