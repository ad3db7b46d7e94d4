"""JobSpec: everything a YAML job spec may say, with its defaults. The only place that knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from mlrun.errors import RequestError


class Conflict(NamedTuple):
    """Keys that don't go together. ``key`` is the one at fault, None where a key is missing."""

    key: str | None
    problem: str
    fix: str


class Block(BaseModel):
    """A mapping in the spec: unknown keys are errors, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        """The rules across keys, on the keys as given (their values may still be of a wrong type)."""
        return iter(())

    @classmethod
    def differs(cls, given: Mapping[str, Any], key: str) -> bool:
        """Whether ``key`` is given and isn't its default: a resolved spec names every default."""
        default = cls.model_fields[key].get_default(call_default_factory=True)
        value = given.get(key, default)
        return bool(
            (tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value) != default
        )

    @model_validator(mode="after")
    def _no_conflicts(self) -> Block:
        for conflict in self.conflicts(self.__dict__):
            raise ValueError(f"{conflict.problem}; {conflict.fix}")
        return self


class Model(Block):
    """What is trained."""

    name: str = Field(
        description="A model of the registry (resnet18, resnet50, distilbert, mlp, ...), "
        "package.module:callable, or torchvision:NAME"
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the model")
    weights: str | None = Field(default=None, description="A checkpoint to start from")


class Data(Block):
    """What it is trained on."""

    source: str = Field(
        default="synthetic",
        description="synthetic, digits, imagefolder, or package.module:callable giving a Dataset",
    )
    path: str | None = Field(
        default=None, description="Folder of the data; its train/ and val/ subfolders where they exist"
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the source")
    samples: PositiveInt | None = Field(default=None, description="How many samples synthetic data has")
    image_size: PositiveInt | None = Field(default=None, description="Height and width of images in pixels")
    sequence_length: PositiveInt | None = Field(default=None, description="Tokens per sequence")
    classes: PositiveInt | None = Field(default=None, description="Number of classes")
    val_split: float | None = Field(
        default=None, gt=0, lt=1, description="Share kept for validation where the source has no split"
    )
    augment: bool = Field(default=True, description="Random crops and flips for training images")
    workers: NonNegativeInt = Field(default=2, description="Loader processes per rank")

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        if given.get("source") == "imagefolder" and given.get("path") is None:
            yield Conflict(
                None, "source: imagefolder without path", "add path: FOLDER, with a folder per class in it"
            )


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

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        name = given.get("name", "sgd")
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


class AllReduce(Block):
    """How gradients are averaged."""

    engine: Literal["ring", "gloo", "mpi", "horovod"] = Field(
        default="ring", description="What averages the gradients"
    )
    bucket_mb: PositiveFloat = Field(
        default=4.0, description="Gradients are averaged in buckets of about this many MiB"
    )
    overlap: bool = Field(
        default=True, description="Average buckets while the backward pass is still running"
    )
    staging: Literal["auto", "overlap", "copy"] = Field(
        default="auto",
        description="How a GPU's gradients meet the ring: overlap, copy (nothing overlaps, the safe way), or "
        "overlap where a self-test at the start passes",
    )
    wire_dtype: Literal["fp16", "bf16"] | None = Field(
        default=None, description="What travels; sums stay fp32"
    )
    checksum: bool = Field(default=False, description="CRC32C over every frame")
    links: PositiveInt | None = Field(
        default=None, description="Sockets per neighbour; chosen by itself when not given"
    )
    heartbeat_s: PositiveFloat = Field(default=10.0, description="A link silent for longer is lost")
    entry_timeout_s: PositiveFloat = Field(
        default=1800.0, description="How long a rank may stay out of a collective that others entered"
    )
    progress_timeout_s: PositiveFloat = Field(
        default=30.0, description="How long a collective that both sides entered may move no byte"
    )
    pace_mbit_s: PositiveFloat | None = Field(
        default=None, description="Simulation: limit each link to this rate"
    )
    pace_delay_us: NonNegativeFloat = Field(default=0.0, description="Simulation: one-way delay of each link")


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


class Network(Block):
    """Which links the ring may use."""

    interfaces: list[str] = Field(
        default_factory=list,
        description="Interfaces (or addresses) that links may use on every host; any cable or Wi-Fi if empty",
    )
    ports: str | None = Field(
        default=None,
        pattern=r"^\d+-\d+$",
        description="TCP ports for links, as in 50000-50100, for firewalls; any if not given",
    )

    @property
    def port_range(self) -> list[int] | None:
        """The first and the last port that may be used."""
        return [int(port) for port in self.ports.split("-")] if self.ports is not None else None

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        first, _, last = str(given.get("ports") or "").partition("-")
        if first.isdigit() and last.isdigit() and not 0 < int(first) <= int(last) < 65536:
            yield Conflict(
                "ports",
                f"{first}-{last} is no range of ports",
                "write the lower one first, as in 50000-50100",
            )


class HostBlock(Block):
    """A host with more to say than ``name:slots``."""

    name: str = Field(description="What ssh calls it")
    address: str | None = Field(default=None, description="Where ssh finds it, when not by its name")
    user: str | None = Field(default=None, description="User to log in as")
    python: str | None = Field(default=None, description="The Python with mlrun on this host")
    workdir: str | None = Field(
        default=None, description="Folder with the code on this host; by default the work folder is sent"
    )
    env: dict[str, str | None] = Field(
        default_factory=dict, description="Added to env; null passes the launcher's value on"
    )
    slots: PositiveInt = Field(default=1, description="Workers on this host")
    batch_size: PositiveInt | None = Field(
        default=None, description="Samples per worker on this host, where hosts are unequal"
    )
    interfaces: list[str] = Field(
        default_factory=list,
        description="Interfaces (or addresses) for links on this host, before network.interfaces",
    )


ALTERNATIVES = (("batch_size", "global_batch_size"), ("steps", "epochs"))
"""Pairs of JobSpec's keys of which exactly one is given."""


class JobSpec(Block):
    """One training job, as written in YAML."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Names the run folder; letters, digits, '.', '_' and '-'",
    )
    framework: Literal["torch", "tensorflow", "sim"] = Field(
        default="torch", description="sim: a Mac made of sleep, to measure scaling"
    )
    task: Literal["image-classification", "text-classification", "regression"] | TaskBlock = Field(
        default="image-classification", description="What is learnt: the loss, metrics and unit of speed"
    )
    model: Model
    data: Data = Data()
    batch_size: PositiveInt | None = Field(default=None, description="Samples per worker and micro-step")
    global_batch_size: PositiveInt | None = Field(
        default=None, description="Samples of all workers per optimizer step, instead of batch_size"
    )
    steps: PositiveInt | None = Field(default=None, description="Optimizer steps to train for")
    epochs: PositiveInt | None = Field(default=None, description="Epochs to train for, instead of steps")
    optimizer: Optimizer = Optimizer()
    lr_schedule: LrSchedule = LrSchedule()
    lr_scale: Literal["none", "linear", "sqrt"] = Field(
        default="none", description="How lr grows with the global batch"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="bf16 and fp16 are autocast"
    )
    grad_accumulation: PositiveInt = Field(default=1, description="Micro-steps per optimizer step")
    seed: NonNegativeInt = Field(default=0, description="Of weights, shuffling, augmentation and dropout")
    threads: PositiveInt | None = Field(
        default=None, description="CPU threads per worker; cores / slots by default"
    )
    device: Literal["auto", "cpu", "mps", "cuda"] = Field(
        default="auto", description="auto takes the first of mps, cuda, cpu that works"
    )
    device_check: bool = Field(
        default=False, description="Before the first step, compare each rank's GPU with its CPU"
    )
    allreduce: AllReduce = AllReduce()
    network: Network = Network()
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint = Checkpoint()
    on_nonfinite: Literal["stop", "skip", "ignore"] = Field(
        default="stop", description="What a loss or gradient that is NaN or infinite does"
    )
    log_every: PositiveInt = Field(default=10, description="Steps between reads of the loss from the device")
    hash_every: PositiveInt = Field(default=500, description="Steps between checks that all replicas agree")
    restarts: NonNegativeInt = Field(default=0, description="How often a failed run starts again by itself")
    hosts: list[str | HostBlock] = Field(
        default_factory=list,
        description="Hosts in order, as name, user@name, name:slots or a mapping; this machine if empty",
    )
    env: dict[str, str | None] = Field(
        default_factory=dict,
        description="Environment of the workers, text as written; null passes the launcher's value on",
    )
    workdir: str | None = Field(
        default=None, description="Folder in which the workers run, and from which they import"
    )
    ship: list[str] = Field(
        default_factory=list,
        description="What of workdir isn't sent to other hosts, in gitignore's language, !NAME what is; "
        "on top of .gitignore and .mlrunignore",
    )
    smoke: dict[str, Any] = Field(
        default_factory=dict, description="What --smoke sets otherwise; any key of this page"
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        for one, other in ALTERNATIVES:
            if given.get(one) is not None and given.get(other) is not None:
                yield Conflict(
                    other, f"{one} and {other} exclude each other", f"keep one of {one} and {other}"
                )
            elif given.get(one) is None and given.get(other) is None:
                yield Conflict(
                    None, f"neither {one} nor {other} is given", f"add one of them, such as {one}: 100"
                )


def batch_shares(spec: JobSpec, world_size: int) -> list[int]:
    """Samples of each rank per optimizer step, accumulation included.

    A ``global_batch_size`` is split as equally as possible; where it doesn't divide, the first ranks
    take one more.

    Raises:
        RequestError: fewer samples than ranks.
    """
    if spec.batch_size is not None:
        return [spec.batch_size * spec.grad_accumulation] * world_size
    assert spec.global_batch_size is not None
    each, more = divmod(spec.global_batch_size, world_size)
    if each == 0:
        raise RequestError(
            f"global_batch_size {spec.global_batch_size} is less than one sample per worker ({world_size})",
            fix=f"raise global_batch_size to {world_size} or more, or start fewer workers with -np",
        )
    return [each + 1] * more + [each] * (world_size - more)
