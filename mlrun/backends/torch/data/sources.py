"""The data a spec names: synthetic, digits, a folder of images, text in files, or a Dataset of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlrun.backends.data import data_missing, in_workdir, open_data
from mlrun.backends.resolve import resolve
from mlrun.backends.torch.data.splits import DatasetSplit, MapDataset, Split, TensorSplit
from mlrun.data import text
from mlrun.data.digits import load_digits
from mlrun.data.fingerprint import fingerprint_of
from mlrun.data.imagefolder import ImageFolder, open_images
from mlrun.data.sampler import Indices, hold_out
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

VOCABULARY = 30_522
"""Token ids of synthetic text: as many as DistilBERT's own."""

_POOL = 256
"""Distinct samples of synthetic data; enough to fill a batch, few enough to stay in the device's memory."""


@dataclass(frozen=True)
class Source:
    """``sample_shape`` is the shape of one sample's inputs; ``classes`` None where there are none."""

    train: Split
    validation: Split | None
    sample_shape: tuple[int, ...]
    classes: int | None
    fingerprint: str
    tokenizer: str | None = None
    """What made tokens of text, as the content of a tokenizer.json."""
    left_out: tuple[str, ...] = ()
    """What was left out when the data were opened, each in a sentence."""

    def close(self) -> None:
        self.train.close()
        if self.validation is not None:
            self.validation.close()


def make_source(spec: JobSpec, device: torch.device) -> Source:
    """Open the spec's data.

    Raises:
        RequestError: the source or its folder doesn't exist, or isn't what the spec says.
    """
    problem = data_missing(spec)
    if problem is not None:
        raise RequestError(problem, fix="correct data.path, or try data.source: synthetic")
    if spec.data.source == "synthetic":
        return _synthetic(spec, device)
    if spec.data.source == "digits":
        return _digits(spec, device)
    if spec.data.source == "imagefolder":
        return _imagefolder(spec)
    if spec.data.source in ("csv", "jsonl"):
        return _text(spec, device)
    if ":" in spec.data.source:
        return _callable(spec)
    raise RequestError(
        f"data.source: {spec.data.source!r} isn't known",
        fix="take synthetic, digits, imagefolder, csv, jsonl, or package.module:callable",
    )


def _synthetic(spec: JobSpec, device: torch.device) -> Source:
    """Random samples made once on the device, so that the number measures training and not reading."""
    data = spec.data
    length = data.samples or 1024
    pool = min(length, _POOL)
    generator = torch.Generator().manual_seed(spec.seed)
    classes: int | None = data.classes or (2 if spec.task == "text-classification" else 1000)
    if spec.task == "text-classification":
        inputs = torch.randint(VOCABULARY, (pool, data.sequence_length or 128), generator=generator)
    elif spec.task == "regression":
        inputs = torch.randn(pool, 32, generator=generator)
    else:
        side = data.image_size or 224
        inputs = torch.randn(pool, 3, side, side, generator=generator)
    if spec.task == "regression":
        classes = None
        targets = inputs @ torch.randn(inputs.shape[1], 1, generator=generator)
    else:
        assert classes is not None
        targets = torch.randint(classes, (pool,), generator=generator)
    inputs, targets = inputs.to(device), targets.to(device)
    return Source(
        train=TensorSplit(inputs, targets, length),
        validation=TensorSplit(inputs, targets, min(pool, length)),
        sample_shape=tuple(inputs.shape[1:]),
        classes=classes,
        fingerprint=fingerprint_of("synthetic", length, spec.seed, classes, tuple(inputs.shape)),
    )


def _digits(spec: JobSpec, device: torch.device) -> Source:
    images, labels = load_digits()
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    kept, held_out = hold_out(len(inputs), spec.data.val_split or 0.2, spec.seed)
    return Source(
        train=_tensors(inputs[kept], targets[kept], device),
        validation=_tensors(inputs[held_out], targets[held_out], device),
        sample_shape=(1, 8, 8),
        classes=10,
        fingerprint=fingerprint_of("digits", len(kept), len(held_out), images.tobytes()),
    )


def _tensors(inputs: Tensor, targets: Tensor, device: torch.device) -> TensorSplit:
    return TensorSplit(inputs.to(device), targets.to(device), len(inputs))


def _imagefolder(spec: JobSpec) -> Source:
    images = open_images(open_data(spec), spec.data, spec.seed)
    return Source(
        train=_images(images.training, images.kept, spec),
        validation=_images(images.validation, images.held_out, spec) if len(images.held_out) else None,
        sample_shape=(3, images.training.side, images.training.side),
        classes=len(images.training.files.classes),
        fingerprint=images.fingerprint,
    )


def _images(dataset: ImageFolder, chosen: Indices, spec: JobSpec) -> DatasetSplit:
    skip = spec.data.on_bad_file == "skip"
    return DatasetSplit(dataset, chosen, spec.seed, spec.data.workers, skip=skip)


def _text(spec: JobSpec, device: torch.device) -> Source:
    """``path``, split by ``val_split``, or ``train`` and ``val`` files in it; all tokens in memory."""
    from mlrun.data import tokens  # noqa: PLC0415 - tokenizers isn't needed elsewhere

    data = spec.data
    if spec.task != "text-classification":
        raise RequestError(
            f"data.source: {data.source} is labelled text", fix="set task: text-classification"
        )
    folder = open_data(spec)
    training_file, validation_file = text.split_files(folder, data.source)
    left_out: list[RequestError] | None = [] if data.on_bad_file == "skip" else None
    rows = text.read_rows(folder, training_file, data, left_out)
    names = text.class_names(rows, data.classes)
    rows = text.of_classes(rows, names, left_out)
    if validation_file is None:
        kept, held_out = hold_out(len(rows), data.val_split, spec.seed)
        training, validation = [rows[i] for i in kept], [rows[i] for i in held_out]
    else:
        others = text.read_rows(folder, validation_file, data, left_out)
        training, validation = rows, text.of_classes(others, names, left_out)
    numbers = {name: number for number, name in enumerate(names)}
    vocabulary = spec.model.args.get("vocab_size", VOCABULARY)
    tokenizer = (
        tokens.make_tokenizer([row.text for row in training], vocabulary)
        if data.tokenizer is None
        else tokens.read_tokenizer(in_workdir(spec, data.tokenizer), vocabulary)
    )

    def split(chosen: list[text.Row]) -> TensorSplit:
        ids, mask = tokens.encode(tokenizer, [row.text for row in chosen], data.sequence_length or 128)
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        targets = torch.tensor([numbers[row.label] for row in chosen])
        return TensorSplit({k: v.to(device) for k, v in inputs.items()}, targets.to(device), len(chosen))

    train, held = split(training), split(validation) if validation else None
    content = [s.inputs["input_ids"].cpu().numpy().tobytes() for s in (train, held) if s is not None]
    return Source(
        train=train,
        validation=held,
        sample_shape=(data.sequence_length or 128,),
        classes=len(names),
        fingerprint=fingerprint_of(data.source, names, train.targets.tolist(), *content),
        tokenizer=tokenizer.to_str(),
        left_out=tuple(error.message for error in left_out or ()),
    )


def _callable(spec: JobSpec) -> Source:
    """``callable(**data.args)`` gives a Dataset of (inputs, target), or the pair (training, validation)."""
    made = resolve(spec.data.source, spec.workdir, "data.source")(**spec.data.args)
    if isinstance(made, tuple | list) and len(made) == 2:
        training, validation = made
        kept, held_out = np.arange(len(training)), np.arange(len(validation))
    else:
        training = validation = made
        if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
            raise RequestError(
                f"data.source: {spec.data.source} gave a {type(made).__name__}, not a map-style Dataset",
                fix="return a map-style torch.utils.data.Dataset, or a pair of them",
            )
        kept, held_out = hold_out(len(training), spec.data.val_split, spec.seed)
    if not len(kept):
        raise RequestError(f"data.source: {spec.data.source} gave no training samples")
    train = DatasetSplit(training, kept, spec.seed, spec.data.workers)
    probe = train.fetch(np.arange(min(8, len(train))), epoch=0)
    first = next(iter(probe.inputs.values())) if isinstance(probe.inputs, dict) else probe.inputs
    return Source(
        train=train,
        validation=_evaluated(validation, held_out, spec),
        sample_shape=tuple(first.shape[1:]),
        classes=spec.data.classes,
        fingerprint=fingerprint_of(
            "callable", len(kept), len(held_out), tuple(first.shape), probe.targets.numpy().tobytes()
        ),
    )


def _evaluated(dataset: MapDataset, chosen: Indices, spec: JobSpec) -> DatasetSplit | None:
    return DatasetSplit(dataset, chosen, spec.seed, spec.data.workers) if len(chosen) else None
