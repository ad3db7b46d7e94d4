"""JobSpec: everything a YAML job spec may say, with its defaults. The only place that knows them."""

from __future__ import annotations

from typing import Any, Literal

from mlrun.errors import RequestError
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, NonNegativeFloat, NonNegativeInt, model_validator


class Block(BaseModel):
    """A mapping in the spec: unknown keys are errors, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Block):
    name: str = Field(description="A model of the registry (resnet18, resnet50, distilbert, mlp, ...), package.module:callable, or torchvision:NAME")
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the model")
    weights: str | None = Field(default=None, description="A checkpoint to start from")


class Data(Block):
    source: str = Field(default="synthetic", description="synthetic, digits, imagefolder, or package.module:callable giving a Dataset")
    path: str | None = Field(default=None, description="Folder of the data; its train/ and val/ subfolders where they exist")
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the source")
    samples: PositiveInt | None = Field(default=None, description="How many samples synthetic data has")
    image_size: PositiveInt | None = Field(default=None, description="Height and width of images in pixels")
    sequence_length: PositiveInt | None = Field(default=None, description="Tokens per sequence")
    classes: PositiveInt | None = Field(default=None, description="Number of classes")
    val_split: float | None = Field(default=None, gt=0, lt=1, description="Share kept for validation where the source has no split")
    augment: bool = Field(default=True, description="Random crops and flips for training images")
    workers: NonNegativeInt = Field(default=2, description="Loader processes per rank")


class TaskBlock(Block):
    """A task of one's own: a callable loss with its metrics and unit."""

    loss: str = Field(description="package.module:callable(outputs, targets) -> mean loss")
    metrics: dict[str, str] = Field(default_factory=dict, description="Name -> package.module:callable(outputs, targets) -> sum over the batch")
    unit: str = Field(default="samples", description="What one sample is called: images, sequences, ...")


class Optimizer(Block):
    name: Literal["sgd", "adamw"] = "sgd"
    lr: PositiveFloat = Field(default=0.1, description="Learning rate before lr_scale")
    momentum: NonNegativeFloat = 0.9
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8


class LrSchedule(Block):
    name: Literal["constant", "step", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = Field(default=0, description="Linear warm-up from 0")
    step_epochs: list[PositiveInt] = Field(default_factory=list, description="step: epochs at which the rate is multiplied by gamma")
    gamma: PositiveFloat = 0.1
    min_lr: NonNegativeFloat = 0.0


class AllReduce(Block):
    engine: Literal["ring", "gloo", "mpi", "horovod"] = "ring"
    bucket_mb: PositiveFloat = Field(default=4.0, description="Gradients are averaged in buckets of about this many MiB")
    overlap: bool = Field(default=True, description="Average buckets while the backward pass is still running")
    wire_dtype: Literal["fp16", "bf16"] | None = Field(default=None, description="What travels; sums stay fp32")
    checksum: bool = Field(default=False, description="CRC32C over every frame")
    links: PositiveInt | None = Field(default=None, description="Sockets per neighbour; chosen by itself when not given")
    heartbeat_s: PositiveFloat = Field(default=10.0, description="A link silent for longer is lost")
    entry_timeout_s: PositiveFloat = Field(default=1800.0, description="How long a rank may stay out of a collective that others entered")
    progress_timeout_s: PositiveFloat = Field(default=30.0, description="How long a collective that both sides entered may move no byte")
    pace_mbit_s: PositiveFloat | None = Field(default=None, description="Simulation: limit each link to this rate")
    pace_delay_us: NonNegativeFloat = Field(default=0.0, description="Simulation: one-way delay of each link")


class Evaluate(Block):
    every_steps: PositiveInt | None = None
    every_epochs: PositiveInt | None = None
    monitor: str = Field(default="accuracy", description="The metric that says which evaluation is best")
    mode: Literal["max", "min"] = "max"
    patience: PositiveInt | None = Field(default=None, description="Stop after this many evaluations without a better one")


class Checkpoint(Block):
    every_steps: PositiveInt | None = None
    every_epochs: PositiveInt | None = None
    every_minutes: PositiveFloat | None = None
    keep: PositiveInt = Field(default=2, description="How many of the last ones stay on disk")
    keep_best: bool = True


class HostBlock(Block):
    name: str
    address: str | None = None
    user: str | None = None
    python: str | None = None
    workdir: str | None = None
    env: dict[str, str | None] = Field(default_factory=dict)
    slots: PositiveInt = 1
    batch_size: PositiveInt | None = Field(default=None, description="Samples per worker on this host, where hosts are unequal")
    interfaces: list[str] = Field(default_factory=list)


class JobSpec(Block):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the run folder")
    framework: Literal["torch", "tensorflow", "sim"] = "torch"
    task: Literal["image-classification", "text-classification", "regression"] | TaskBlock = "image-classification"
    model: Model
    data: Data = Data()
    batch_size: PositiveInt | None = Field(default=None, description="Samples per worker and micro-step")
    global_batch_size: PositiveInt | None = Field(default=None, description="Samples of all workers per optimizer step, instead of batch_size")
    steps: PositiveInt | None = Field(default=None, description="Optimizer steps to train for")
    epochs: PositiveInt | None = Field(default=None, description="Epochs to train for, instead of steps")
    optimizer: Optimizer = Optimizer()
    lr_schedule: LrSchedule = LrSchedule()
    lr_scale: Literal["none", "linear", "sqrt"] = Field(default="none", description="How lr grows with the global batch")
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    grad_accumulation: PositiveInt = 1
    seed: NonNegativeInt = 0
    threads: PositiveInt | None = Field(default=None, description="CPU threads per worker; cores / slots by default")
    device: Literal["auto", "cpu", "mps", "cuda"] = Field(default="auto", description="auto takes the first of mps, cuda, cpu that works")
    allreduce: AllReduce = AllReduce()
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint = Checkpoint()
    on_nonfinite: Literal["stop", "skip", "ignore"] = "stop"
    log_every: PositiveInt = Field(default=10, description="Steps between reads of the loss from the device")
    hash_every: PositiveInt = Field(default=500, description="Steps between checks that all replicas agree")
    restarts: NonNegativeInt = 0
    hosts: list[str | HostBlock] = Field(default_factory=list)
    env: dict[str, str | None] = Field(default_factory=dict)
    workdir: str | None = None
    smoke: dict[str, Any] = Field(default_factory=dict, description="Overrides under --smoke")

    @model_validator(mode="after")
    def _one_of_each(self) -> JobSpec:
        if (self.batch_size is None) == (self.global_batch_size is None):
            raise ValueError("give one of batch_size and global_batch_size")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give one of steps and epochs")
        return self


def batch_shares(spec: JobSpec, world_size: int) -> list[int]:
    """Samples of each rank per optimizer step, accumulation included.

    A ``global_batch_size`` is split as equally as possible; the first ranks take one more where it doesn't divide.

    Raises:
        RequestError: fewer samples than ranks.
    """
    if spec.batch_size is not None:
        return [spec.batch_size * spec.grad_accumulation] * world_size
    assert spec.global_batch_size is not None
    each, more = divmod(spec.global_batch_size, world_size)
    if each == 0:
        raise RequestError(
            f"global_batch_size {spec.global_batch_size} leaves some of the {world_size} workers without a sample",
            fix=f"raise global_batch_size to {world_size} or more, or start fewer workers with -np",
        )
    return [each + 1] * more + [each] * (world_size - more)
