"""A split: samples that can be fetched as batches, from memory or from a Dataset through loader workers."""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from mlrun.data.folder import BadFileError, DataError
from mlrun.data.sampler import Indices
from mlrun.errors import RequestError, RunFailedError

Key = tuple[int, int]
"""(epoch, index of the sample): all that a sample's augmentation may depend on, with the seed."""


@dataclass(frozen=True)
class Batch:
    """``inputs`` is a tensor, or a mapping of tensors that become the model's keyword arguments."""

    inputs: Any
    targets: Tensor
    count: int
    left_out: tuple[str, ...] = ()
    """What couldn't be read, where that is skipped: it isn't in the batch, nor in ``count``."""

    def to(self, device: torch.device) -> Batch:
        return Batch(_move(self.inputs, device), self.targets.to(device), self.count, self.left_out)

    def zeroed(self) -> Batch:
        """The same shapes and types, all zero: for a rank that must take part without samples."""
        inputs = self.inputs
        zeros = (
            {name: torch.zeros_like(value) for name, value in inputs.items()}
            if isinstance(inputs, dict)
            else torch.zeros_like(inputs)
        )
        return Batch(zeros, torch.zeros_like(self.targets), self.count)


_NO_INPUTS = torch.empty(0)
"""Of a batch whose samples were all left out."""


def _move(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, dict):
        return {name: value.to(device) for name, value in inputs.items()}
    return inputs.to(device)


class MapDataset(Protocol):
    """A map-style ``torch.utils.data.Dataset`` of (inputs, target) pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Split(ABC):
    """Samples numbered from 0 to ``len(split) - 1``."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, indices: Indices, epoch: int) -> Batch:
        """Samples ``indices`` as they are in ``epoch``, made here and now."""

    @abstractmethod
    def stream(self, batches: Iterable[tuple[int, Indices]]) -> Iterator[Batch]:
        """One batch for each (epoch, indices), made ahead of time where the split can."""

    def close(self) -> None:
        """End what makes batches ahead of time."""
        return


@dataclass(frozen=True)
class TensorSplit(Split):
    """All samples in tensors on the training device. Samples beyond the tensors' length repeat them."""

    inputs: Any
    """A tensor, or a mapping of tensors."""
    targets: Tensor
    length: int

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Indices, epoch: int) -> Batch:
        chosen = torch.from_numpy(indices % len(self.targets)).to(self.targets.device)
        if isinstance(self.inputs, dict):
            inputs: Any = {name: values[chosen] for name, values in self.inputs.items()}
        else:
            inputs = self.inputs[chosen]
        return Batch(inputs, self.targets[chosen], len(indices))

    def stream(self, batches: Iterable[tuple[int, Indices]]) -> Iterator[Batch]:
        return (self.fetch(indices, epoch) for epoch, indices in batches)


class DatasetSplit(Split):
    """Samples ``chosen`` of a Dataset, read by ``workers`` processes (0: by this one).

    Before a sample is read, the generators of Python, NumPy and PyTorch are seeded from (seed, epoch,
    sample), so augmentation is the same whichever rank or worker reads it. ``skip``: files whose content
    is bad are left out of their batch, which may leave it with ``count`` 0.
    """

    def __init__(
        self, dataset: MapDataset, chosen: Indices, seed: int, workers: int, *, skip: bool = False
    ) -> None:
        self._reader = _Reader(dataset, chosen, seed, skip)
        self._keys = _Keys()
        self._workers = workers
        self._loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        return len(self._reader.chosen)

    def fetch(self, indices: Indices, epoch: int) -> Batch:
        return _checked(self._reader.__getitems__([(epoch, int(index)) for index in indices]))

    def stream(self, batches: Iterable[tuple[int, Indices]]) -> Iterator[Batch]:
        self._keys.batches = batches
        if self._loader is None:
            self._loader = DataLoader(
                self._reader,  # type: ignore[arg-type]
                batch_sampler=self._keys,
                num_workers=self._workers,
                collate_fn=_as_is,
                persistent_workers=self._workers > 0,
                multiprocessing_context="spawn" if self._workers else None,
            )
        return map(_checked, self._loader)

    def close(self) -> None:
        self._loader = None


class _Keys:
    """The batch sampler of a DataLoader that outlives one pass over the data."""

    batches: Iterable[tuple[int, Indices]] = ()

    def __iter__(self) -> Iterator[list[Key]]:
        for epoch, indices in self.batches:
            yield [(epoch, int(index)) for index in indices]


_REPAIR = "repair or remove it and resume the run, or set data.on_bad_file: skip"


@dataclass(frozen=True)
class _Unreadable:
    """Travels back from a loader worker in place of a batch; a raised exception would come as a traceback."""

    index: int
    reason: str
    fix: str | None = "repair or remove it, then resume the run"


@dataclass(frozen=True)
class _Misfit:
    """Like _Unreadable: the samples were read, but make no batch."""

    reason: str


@dataclass(frozen=True)
class _Reader:
    """Reads whole batches, in the main process or in a loader worker."""

    dataset: MapDataset
    chosen: Indices
    seed: int
    skip: bool

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitems__(self, keys: list[Key]) -> Batch | _Unreadable | _Misfit:
        samples: list[Any] = []
        left_out: list[str] = []
        for epoch, index in keys:
            number = int(self.chosen[index])
            _seed_all(self.seed, epoch, number)
            try:
                samples.append(self.dataset[number])
            except DataError as error:
                return _Unreadable(number, error.message, error.fix)
            except BadFileError as error:
                if not self.skip:
                    return _Unreadable(number, str(error), _REPAIR)
                left_out.append(str(error))
            except OSError as error:
                return _Unreadable(number, str(error))
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                return _Unreadable(number, f"{error!r} at {place.filename}:{place.lineno}")
        return _batch(samples, tuple(left_out))


def _batch(samples: list[Any], left_out: tuple[str, ...]) -> Batch | _Misfit:
    for sample in samples:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            return _Misfit(f"a sample is {_described(sample)}, not (inputs, target)")
    if not samples:
        return Batch(_NO_INPUTS, _NO_INPUTS, 0, left_out)
    try:
        inputs, targets = default_collate(samples)
    except (RuntimeError, TypeError, ValueError) as error:
        return _Misfit(f"samples don't make a batch: {str(error).splitlines()[0]}")
    return Batch(inputs, targets, len(samples), left_out)


def _described(sample: Any) -> str:
    kind = type(sample).__name__
    return f"a {kind} of {len(sample)}" if isinstance(sample, tuple | list) else f"of type {kind}"


def _seed_all(seed: int, epoch: int, sample: int) -> None:
    drawn = int(np.random.SeedSequence((seed, epoch, sample)).generate_state(1)[0])
    random.seed(drawn)
    np.random.seed(drawn)
    torch.default_generator.manual_seed(drawn)


def _as_is(batch: Any) -> Any:
    return batch


def _checked(batch: Batch | _Unreadable | _Misfit) -> Batch:
    if isinstance(batch, _Misfit):
        raise RequestError(
            f"data.source: {batch.reason}",
            fix="let the Dataset give (inputs, target), tensors or numbers of one shape for all samples",
        )
    if isinstance(batch, _Unreadable):
        raise RunFailedError(f"sample {batch.index} can't be read: {batch.reason}", fix=batch.fix)
    return batch
