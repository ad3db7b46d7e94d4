"""JobSpec: everything a YAML job spec may say, with its defaults. The only place that knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from mlrun.errors import RequestError
from mlrun.spec.block import Block, Conflict
from mlrun.spec.cluster import AllReduce, Hooks, HostBlock, Network
from mlrun.spec.script import Script
from mlrun.spec.training import Checkpoint, Data, Evaluate, LrSchedule, Model, Optimizer, Sim, TaskBlock

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
    run: Script | None = Field(
        default=None, description="A script of one's own to run, instead of a model, its data and its steps"
    )
    model: Model = Field(default=Model(name=""), description="What is trained; needed without run")
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
    sim: Sim = Sim()
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint = Checkpoint()
    on_nonfinite: Literal["stop", "skip", "ignore"] = Field(
        default="stop", description="What a loss or gradient that is NaN or infinite does"
    )
    log_every: PositiveInt = Field(default=10, description="Steps between reads of the loss from the device")
    hash_every: PositiveInt = Field(default=500, description="Steps between checks that all replicas agree")
    restarts: NonNegativeInt = Field(default=0, description="How often a failed run starts again by itself")
    hooks: Hooks = Hooks()
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
    custom_ops: list[str] = Field(
        default_factory=list,
        description="Custom operations, loaded before the model is made: libraries (.so), C++ sources (.cc), "
        "built on each host, or .py files that register some",
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
        scripted = given.get("run") is not None
        model = given.get("model")
        if not scripted and (model is None or _own(model, "name") == ""):
            key = "model" if model else None
            yield Conflict(key, "neither model nor run is given", "add model: {name: ...}")
        for one, other in ALTERNATIVES:
            if scripted:
                break
            if given.get(one) is not None and given.get(other) is not None:
                yield Conflict(
                    other, f"{one} and {other} exclude each other", f"keep one of {one} and {other}"
                )
            elif given.get(one) is None and given.get(other) is None:
                yield Conflict(
                    None, f"neither {one} nor {other} is given", f"add one of them, such as {one}: 100"
                )
        skips = _own(given.get("data"), "on_bad_file") == "skip"
        if skips and given.get("framework", "torch") != "torch":
            yield Conflict(
                "framework",
                "data.on_bad_file: skip is for framework: torch",
                "set framework: torch, or remove on_bad_file",
            )
        hosts = given.get("hosts")
        unequal = isinstance(hosts, list) and any(_own(host, "batch_size") is not None for host in hosts)
        if unequal and given.get("global_batch_size") is not None:
            yield Conflict(
                "hosts",
                "a host has a batch_size of its own, and global_batch_size splits by itself",
                "give batch_size instead of global_batch_size, or remove it from the host",
            )
        data = given.get("data")
        elsewhere = (_own(data, "location") or "each-host") != "each-host"
        if elsewhere and isinstance(hosts, list) and any(_own(host, "data") is not None for host in hosts):
            yield Conflict(
                "hosts",
                "a host has a data path of its own, and data.location is one for all",
                "remove data from the host, or set data.location: each-host",
            )


def _own(block: Any, key: str) -> Any:
    """A key of a block inside the spec, as given or loaded."""
    return block.get(key) if isinstance(block, Mapping) else getattr(block, key, None)


def own_share(spec: JobSpec) -> int:
    """Samples of a rank per optimizer step, accumulation included, by the spec as its own host got it.

    Such a spec has that host alone under ``hosts``. Of no meaning where ``global_batch_size`` is given.
    """
    host = spec.hosts[0] if len(spec.hosts) == 1 else None
    given = host.batch_size if isinstance(host, HostBlock) else None
    return (given or spec.batch_size or 1) * spec.grad_accumulation


def batch_shares(spec: JobSpec, world_size: int, given: Sequence[int | None] = ()) -> list[int]:
    """Samples of each rank per optimizer step, accumulation included.

    ``given[rank]`` is the ``batch_size`` of the rank's host, where it has one of its own. A
    ``global_batch_size`` is split as equally as possible; where it doesn't divide, the first ranks
    take one more. What a script takes is its own business: 0.

    Raises:
        RequestError: fewer samples than ranks.
    """
    if spec.run is not None:
        return [0] * world_size
    if spec.batch_size is not None:
        own = [each or spec.batch_size for each in given or [None] * world_size]
        return [each * spec.grad_accumulation for each in own]
    assert spec.global_batch_size is not None
    each, more = divmod(spec.global_batch_size, world_size)
    if each == 0:
        raise RequestError(
            f"global_batch_size {spec.global_batch_size} is less than one sample per worker ({world_size})",
            fix=f"raise global_batch_size to {world_size} or more, or start fewer workers with -np",
        )
    return [each + 1] * more + [each] * (world_size - more)
