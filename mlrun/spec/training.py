"""What is trained, on what, and how: the blocks of a spec that no host or link appears in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from mlrun.spec.block import Block, Conflict


class Model(Block):
    """What is trained."""

    name: str = Field(
        description="A model of the registry (resnet18, resnet50, distilbert, mlp, ...), "
        "package.module:callable, or torchvision:NAME"
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the model")
    weights: str | None = Field(
        default=None,
        description="What to start from: a safetensors file, a checkpoint's folder, or a run's folder "
        "(its last checkpoint); on every host",
    )
    fresh: list[str] = Field(
        default_factory=list,
        description="Patterns of parameters that start anew instead of from weights, such as '*classifier*'",
    )
    freeze: list[str] = Field(
        default_factory=list,
        description="Patterns of parameters that stay as they are, such as '*embeddings*'",
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        if given.get("fresh") and given.get("weights") is None:
            yield Conflict(
                "fresh", "all parameters start anew without weights", "add weights, or remove fresh"
            )


FILES_OF = ("imagefolder", "csv", "jsonl")
"""The sources that read files."""


class Data(Block):
    """What it is trained on."""

    source: str = Field(
        default="synthetic",
        description="synthetic, digits, imagefolder, csv, jsonl, or package.module:callable giving a Dataset",
    )
    path: str | None = Field(
        default=None,
        description="Folder of the data, with train/ and val/ (train.csv and val.csv, ...) where they exist; "
        "or the csv or jsonl file itself",
    )
    location: str = Field(
        default="each-host",
        description="Where path is: each-host; launcher, which serves it to the others; or a URL that path "
        "is below, such as s3://bucket/flowers",
    )
    cache_gb: PositiveFloat = Field(
        default=50.0, description="Disk that each host keeps files on that aren't its own, in 10^9 bytes"
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the source")
    samples: PositiveInt | None = Field(default=None, description="How many samples synthetic data has")
    image_size: PositiveInt | None = Field(default=None, description="Height and width of images in pixels")
    sequence_length: PositiveInt | None = Field(
        default=None, description="Tokens per sequence: longer text is cut, shorter padded (128 by default)"
    )
    text_column: str = Field(default="text", description="csv, jsonl: the column with the text")
    label_column: str = Field(default="label", description="csv, jsonl: the column with the label")
    encoding: str = Field(default="utf-8", description="csv, jsonl: how characters are written")
    tokenizer: str | None = Field(
        default=None,
        description="csv, jsonl: a tokenizer.json, or a folder with one; by default the words of the "
        "training texts, left in each checkpoint as tokenizer.json",
    )
    classes: PositiveInt | None = Field(default=None, description="Number of classes")
    val_split: float | None = Field(
        default=None, gt=0, lt=1, description="Share kept for validation where the source has no split"
    )
    augment: bool = Field(default=True, description="Random crops and flips for training images")
    on_bad_file: Literal["stop", "skip"] = Field(
        default="stop",
        description="What an image that can't be decoded, or a bad row of text, does: stop the run with its "
        "name, or be left out and counted",
    )
    workers: NonNegativeInt = Field(default=2, description="Loader processes per rank")

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        source, location = given.get("source", "synthetic"), str(given.get("location") or "each-host")
        if location not in ("each-host", "launcher") and "://" not in location:
            yield Conflict(
                "location",
                f"{location} is neither each-host nor launcher nor a URL",
                "write one of these, such as s3://bucket/flowers",
            )
        elif location != "each-host" and source not in FILES_OF:
            yield Conflict("location", f"source: {source} reads no files", f"set source: {FILES_OF[0]}, say")
        if source not in FILES_OF and cls.differs(given, "on_bad_file"):
            yield Conflict(
                "on_bad_file",
                f"source: {source} reads no files",
                f"remove on_bad_file, or set source: {FILES_OF[0]}, say",
            )
        if source in FILES_OF and given.get("path") is None and "://" not in location:
            where = "FOLDER, with a folder per class in it" if source == "imagefolder" else f"FILE.{source}"
            yield Conflict(None, f"source: {source} without path", f"add path: {where}")


class TaskBlock(Block):
    """A task of one's own: a callable loss with its metrics and unit."""

    loss: str = Field(description="package.module:callable(outputs, targets) -> mean loss")
    metrics: dict[str, str] = Field(
        default_factory=dict,
        description="Name -> package.module:callable(outputs, targets) -> sum over the batch",
    )
    unit: str = Field(default="samples", description="What one sample is called: images, sequences, ...")


Beta: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Block):
    """How weights follow gradients."""

    name: Literal["sgd", "adamw"] = Field(default="sgd", description="The update rule")
    lr: PositiveFloat = Field(default=0.1, description="Learning rate before lr_scale")
    momentum: NonNegativeFloat = Field(default=0.9, description="sgd: momentum")
    nesterov: bool = Field(default=False, description="sgd: Nesterov's momentum")
    weight_decay: NonNegativeFloat = Field(
        default=0.0, description="L2 penalty (sgd) or decoupled decay (adamw)"
    )
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="adamw: decay of the two running means"
    )
    eps: PositiveFloat = Field(default=1e-8, description="adamw: added to the denominator")
    no_decay: list[str] = Field(
        default_factory=list,
        description="Patterns of parameters without weight decay, such as bias and '*layer_norm*'",
    )
    clip_norm: PositiveFloat | None = Field(
        default=None, description="Scale gradients down to this norm over all parameters where they exceed it"
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        name = given.get("name", "sgd")
        if given.get("no_decay") and not given.get("weight_decay"):
            yield Conflict("no_decay", "there is no weight decay", "set weight_decay, or remove no_decay")
        for key in ("momentum", "nesterov") if name == "adamw" else ("betas", "eps") if name == "sgd" else ():
            if cls.differs(given, key):
                other = "sgd" if name == "adamw" else "adamw"
                yield Conflict(key, f"{name} has no {key}", f"remove {key}, or set name: {other}")
        if name == "sgd" and given.get("nesterov") is True and given.get("momentum") == 0:
            yield Conflict(
                "nesterov", "nesterov needs momentum, and momentum is 0", "remove nesterov, or raise momentum"
            )


class LrSchedule(Block):
    """How the learning rate changes over the run."""

    name: Literal["constant", "step", "cosine"] = Field(default="constant", description="Shape of the rate")
    warmup_steps: NonNegativeInt = Field(default=0, description="Linear warm-up from 0")
    step_epochs: list[PositiveInt] = Field(
        default_factory=list, description="step: epochs at which the rate is multiplied by gamma"
    )
    gamma: PositiveFloat = Field(default=0.1, description="step: factor of the rate at each of step_epochs")
    min_lr: NonNegativeFloat = Field(default=0.0, description="cosine: the rate at the end")

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        name = given.get("name", "constant")
        for key, schedule in {"step_epochs": "step", "gamma": "step", "min_lr": "cosine"}.items():
            if name in ("constant", "step", "cosine") and name != schedule and cls.differs(given, key):
                yield Conflict(
                    key, f"the {name} schedule has no {key}", f"remove {key}, or set name: {schedule}"
                )
        if name == "step" and not given.get("step_epochs"):
            yield Conflict(None, "name: step without step_epochs", "add step_epochs: [30, 60], say")


class Evaluate(Block):
    """When and how the validation set is evaluated."""

    every_steps: PositiveInt | None = Field(default=None, description="Optimizer steps between evaluations")
    every_epochs: PositiveInt | None = Field(default=None, description="Epochs between evaluations")
    monitor: str = Field(default="accuracy", description="The metric that says which evaluation is best")
    mode: Literal["max", "min"] = Field(default="max", description="Whether more or less of it is better")
    patience: PositiveInt | None = Field(
        default=None, description="Stop after this many evaluations without a better one"
    )


class Checkpoint(Block):
    """When the run is saved and what stays on disk."""

    every_steps: PositiveInt | None = Field(default=None, description="Optimizer steps between checkpoints")
    every_epochs: PositiveInt | None = Field(default=None, description="Epochs between checkpoints")
    every_minutes: PositiveFloat | None = Field(default=None, description="Minutes between checkpoints")
    keep: PositiveInt = Field(default=2, description="How many of the last ones stay on disk")
    keep_best: bool = Field(default=True, description="Keep the checkpoint of the best evaluation too")


class Sim(Block):
    """What a simulated worker is, under ``framework: sim``."""

    samples_per_second: PositiveFloat | list[PositiveFloat] = Field(
        default=200.0, description="Speed of one worker alone; a list gives each rank its own"
    )
    jitter: NonNegativeFloat = Field(
        default=0.0, description="How much steps differ by chance: standard deviation over the mean"
    )
