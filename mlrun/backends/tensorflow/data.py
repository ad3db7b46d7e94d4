"""The data a spec names, by ``tf.data``: synthetic, digits, images in folders, or a dataset of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mlrun.backends.data import data_missing, open_data
from mlrun.backends.resolve import resolve
from mlrun.data.digits import load_digits
from mlrun.data.fingerprint import fingerprint_of
from mlrun.data.imagefolder import ImageFolder, open_images
from mlrun.data.sampler import Indices, hold_out
from mlrun.errors import RequestError, RunFailedError
from mlrun.spec import JobSpec

VOCABULARY = 30_522
"""Token ids of synthetic text: as many as DistilBERT's own."""

_POOL = 256
"""Distinct samples of synthetic data."""

Read = Callable[[Indices, int], "tuple[Any, Any]"]
"""Samples ``indices`` as they are in ``epoch``: (inputs, targets), arrays or nests of them."""


@dataclass(frozen=True)
class Batch:
    """``inputs`` is a tensor, or whatever nest of tensors the model is called with."""

    inputs: Any
    targets: Any
    count: int

    def zeroed(self) -> Batch:
        """The same shapes and types, all zero: for a rank that must take part without samples."""
        return Batch(
            tf.nest.map_structure(tf.zeros_like, self.inputs), tf.zeros_like(self.targets), self.count
        )


class Split:
    """Samples numbered from 0 to ``length - 1``; ``workers`` batches are read at once, ahead of time.

    In every batch a sample is the same whichever rank reads it: it depends on (seed, epoch, sample) alone.
    """

    def __init__(self, read: Read, length: int, workers: int) -> None:
        self._read = read
        self._length = length
        self._workers = workers
        self._like = read(np.zeros(1, dtype=np.int64), 0)
        self._error: Exception | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of the (first) input of one sample."""
        return tuple(tf.nest.flatten(self._like[0])[0].shape[1:])

    def fetch(self, indices: Indices, epoch: int) -> Batch:
        inputs, targets = self._read(indices, epoch)
        return Batch(tf.nest.map_structure(tf.constant, inputs), tf.constant(targets), len(indices))

    def stream(self, batches: Iterable[tuple[int, Indices]]) -> Iterator[Batch]:
        """One batch for each (epoch, indices).

        Raises:
            RunFailedError: a sample can't be read.
        """
        signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64))
        dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
        if self._workers:
            parallel = {"num_parallel_calls": self._workers, "deterministic": True}
            dataset = dataset.map(self._in_graph, **parallel).prefetch(self._workers)
        else:
            dataset = dataset.map(self._in_graph)
        stream = iter(dataset)
        while True:
            try:
                inputs, targets = next(stream)
            except StopIteration:
                return
            except tf.errors.OpError:
                if self._error is not None:
                    raise self._error from None
                raise
            yield Batch(inputs, targets, int(targets.shape[0]))

    def _in_graph(self, epoch: Any, indices: Any) -> Any:
        like = tf.nest.flatten(self._like)
        flat = tf.numpy_function(self._flat, [epoch, indices], [tf.as_dtype(each.dtype) for each in like])
        for tensor, each in zip(flat, like, strict=True):
            tensor.set_shape([None, *each.shape[1:]])
        return tf.nest.pack_sequence_as(self._like, flat)

    def _flat(self, epoch: Any, indices: Indices) -> list[Any]:
        try:
            return list(tf.nest.flatten(self._read(indices, int(epoch))))
        except Exception as error:
            self._error = self._error or error
            raise


@dataclass(frozen=True)
class Source:
    """``sample_shape`` is the shape of one sample's inputs, channels last; ``classes`` None: unknown."""

    train: Split
    validation: Split | None
    classes: int | None
    fingerprint: str

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.train.sample_shape


def make_source(spec: JobSpec) -> Source:
    """Open the spec's data.

    Raises:
        RequestError: the source or its folder doesn't exist, or isn't what the spec says.
    """
    problem = data_missing(spec)
    if problem is not None:
        raise RequestError(problem, fix="correct data.path, or try data.source: synthetic")
    known = {"synthetic": _synthetic, "digits": _digits, "imagefolder": _imagefolder}
    if spec.data.source in known:
        return known[spec.data.source](spec)
    if ":" in spec.data.source:
        return _callable(spec)
    raise RequestError(
        f"data.source: TensorFlow has no source {spec.data.source!r}",
        fix=f"take {', '.join(known)} or package.module:callable, or framework: torch",
    )


def _synthetic(spec: JobSpec) -> Source:
    """Random samples made once, so that the number measures training and not reading."""
    data = spec.data
    length = data.samples or 1024
    pool = min(length, _POOL)
    draw = np.random.default_rng(spec.seed)
    classes: int | None = data.classes or (2 if spec.task == "text-classification" else 1000)
    if spec.task == "text-classification":
        inputs: Any = draw.integers(0, VOCABULARY, (pool, data.sequence_length or 128))
    elif spec.task == "regression":
        inputs = draw.standard_normal((pool, 32), dtype=np.float32)
    else:
        side = data.image_size or 224
        inputs = draw.standard_normal((pool, side, side, 3), dtype=np.float32)
    if spec.task == "regression":
        classes = None
        targets: Any = inputs @ draw.standard_normal((inputs.shape[1], 1), dtype=np.float32)
    else:
        targets = draw.integers(0, classes, pool)
    return Source(
        train=_arrays(inputs, targets, length),
        validation=_arrays(inputs, targets, min(pool, length)),
        classes=classes,
        fingerprint=fingerprint_of("synthetic", length, spec.seed, classes, inputs.shape),
    )


def _digits(spec: JobSpec) -> Source:
    """As for PyTorch: the same samples are held out, a fifth by default; never augmented."""
    images, labels = load_digits()
    inputs = np.moveaxis(images, 1, -1)
    kept, held_out = hold_out(len(inputs), spec.data.val_split or 0.2, spec.seed)
    return Source(
        train=_arrays(inputs[kept], labels[kept], len(kept)),
        validation=_arrays(inputs[held_out], labels[held_out], len(held_out)),
        classes=10,
        fingerprint=fingerprint_of("digits", len(kept), len(held_out), images.tobytes()),
    )


def _arrays(inputs: Any, targets: Any, length: int) -> Split:
    """All samples in memory; those beyond the arrays' length repeat them. Nothing to read ahead."""

    def read(indices: Indices, _epoch: int) -> tuple[Any, Any]:
        chosen = indices % len(targets)
        return inputs[chosen], targets[chosen]

    return Split(read, length, workers=0)


def _imagefolder(spec: JobSpec) -> Source:
    images = open_images(open_data(spec), spec.data, spec.seed)

    def split(of: ImageFolder, chosen: Indices) -> Split:
        def sample(number: int, drawn: int) -> tuple[Any, Any]:
            image, label = of.read(number, random.Random(drawn))
            return np.moveaxis(image, 0, -1), np.int64(label)

        return Split(_one_by_one(sample, chosen, spec.seed), len(chosen), spec.data.workers)

    return Source(
        train=split(images.training, images.kept),
        validation=split(images.validation, images.held_out) if len(images.held_out) else None,
        classes=len(images.training.files.classes),
        fingerprint=images.fingerprint,
    )


def _callable(spec: JobSpec) -> Source:
    """``callable(**data.args)`` gives a dataset of (inputs, target), or the pair (training, validation)."""
    made = resolve(spec.data.source, spec.workdir, "data.source")(**spec.data.args)
    if isinstance(made, tuple | list) and len(made) == 2:
        training, validation = made
        kept, held_out = np.arange(len(training)), np.arange(len(validation))
    else:
        training = validation = made
        if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
            raise RequestError(
                f"data.source: {spec.data.source} gave a {type(made).__name__}, not a map-style dataset",
                fix="return something with len() and [number] that gives (inputs, target), or a pair of them",
            )
        kept, held_out = hold_out(len(training), spec.data.val_split, spec.seed)
    if not len(kept):
        raise RequestError(f"data.source: {spec.data.source} gave no training samples")

    def split(of: Any, chosen: Indices) -> Split:
        read = _one_by_one(lambda number, _drawn: of[number], chosen, spec.seed)
        return Split(read, len(chosen), spec.data.workers)

    train = split(training, kept)
    probe = train.fetch(np.arange(min(8, len(train))), epoch=0)
    return Source(
        train=train,
        validation=split(validation, held_out) if len(held_out) else None,
        classes=spec.data.classes,
        fingerprint=fingerprint_of(
            "callable", len(kept), len(held_out), train.sample_shape, probe.targets.numpy().tobytes()
        ),
    )


def _one_by_one(sample: Callable[[int, int], Any], chosen: Indices, seed: int) -> Read:
    """Batches of ``sample(number, drawn)``; ``drawn`` follows from (seed, epoch, number)."""

    def read(indices: Indices, epoch: int) -> tuple[Any, Any]:
        made = []
        for number in (int(chosen[index]) for index in indices):
            drawn = int(np.random.SeedSequence((seed, epoch, number)).generate_state(1)[0])
            try:
                inputs, target = sample(number, drawn)
            except Exception as error:
                reason = str(error) if isinstance(error, OSError) else repr(error)
                raise RunFailedError(
                    f"sample {number} can't be read: {reason}", fix="repair or remove it, then resume the run"
                ) from error
            made.append((inputs, target))
        inputs, targets = tf.nest.map_structure(lambda *values: np.stack(values), *made)
        return inputs, targets

    return read
