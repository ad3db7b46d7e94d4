"""From what was asked for to what will run: who works where, and what the batch becomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlrun.backends.data import data_folder
from mlrun.errors import RefusedError, RequestError
from mlrun.hosts import Host, hosts_of_spec, spec_entry
from mlrun.protocol import Assignment
from mlrun.spec import JobSpec, batch_shares


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run as it will be. ``hosts`` are those with workers; ``notes`` are lines for people."""

    spec: JobSpec
    assignments: list[Assignment]
    hosts: list[Host]
    shares: list[int]
    """Samples of each rank per optimizer step."""
    notes: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        return len(self.assignments)


def resolve(spec: JobSpec, np: int | None, *, smoke: bool = False) -> Resolved:
    """Decide ranks and hosts. ``np``: workers in all; by default every slot of every host, or one.

    Raises:
        RequestError: more workers than slots, or fewer samples than workers.
        RefusedError: an engine that can't work over several hosts.
    """
    notes: list[str] = []
    spec = spec.model_copy(update={"workdir": _workdir(spec)})
    hosts = [Host("localhost")] if smoke else hosts_of_spec(spec.hosts) or [Host("localhost")]
    if smoke:
        spec = _with_data(spec, notes)
    counts = _workers_per_host(hosts, np)
    used = [replace(host, slots=count) for host, count in zip(hosts, counts, strict=True) if count]
    if len(used) > 1 and spec.allreduce.engine == "mpi":
        raise RefusedError(
            "engine mpi works within one host: mpirun isn't started across hosts",
            fix="take allreduce.engine: ring or gloo",
        )
    assignments = [
        Assignment(0, 0, local_rank, host.slots, host.name)
        for host in used
        for local_rank in range(host.slots)
    ]
    world_size = len(assignments)
    assignments = [
        Assignment(rank, world_size, a.local_rank, a.local_world_size, a.host)
        for rank, a in enumerate(assignments)
    ]
    own = {host.name: host.batch_size for host in used}
    shares = batch_shares(spec, world_size, [own[a.host] for a in assignments])
    notes += _batch_notes(spec, shares) if spec.run is None else []
    spec = spec.model_copy(update={"hosts": [spec_entry(host) for host in used]})
    return Resolved(spec, assignments, used, shares, notes)


def _workdir(spec: JobSpec) -> str:
    """Absolute, so that workers, and a resume from elsewhere, mean the same folder."""
    folder = Path(spec.workdir or ".").expanduser().resolve()
    if not folder.is_dir():
        raise RequestError(f"workdir: there is no folder {folder}", fix="make it, or correct workdir")
    return str(folder)


def _workers_per_host(hosts: list[Host], np: int | None) -> list[int]:
    """Hosts are filled in order. One local host takes as many as asked for: nothing needs reserving there."""
    if np is None:
        return [host.slots for host in hosts]
    if np < 1:
        raise RequestError(f"-np {np}: a run needs at least one worker", fix="give -np 1 or more")
    if len(hosts) == 1 and hosts[0].is_local:
        return [np]
    slots = sum(host.slots for host in hosts)
    if np > slots:
        raise RequestError(
            f"-np {np}, but the hosts have {slots} slots", fix=f"say -np {slots}, or host:N for more"
        )
    counts: list[int] = []
    for host in hosts:
        counts.append(min(host.slots, np - sum(counts)))
    return counts


def _batch_notes(spec: JobSpec, shares: list[int]) -> list[str]:
    whole, world_size = sum(shares), len(shares)
    if spec.global_batch_size is not None:
        each = f"{shares[0]}" if shares[0] == shares[-1] else f"{shares[-1]} to {shares[0]}"
        return [f"global batch {whole}: {each} per worker, lr unchanged {spec.optimizer.lr:g}"]
    if world_size == 1:
        return []
    assert spec.batch_size is not None
    own = spec.batch_size * spec.grad_accumulation
    factor = {"none": 1.0, "linear": whole / own, "sqrt": (whole / own) ** 0.5}[spec.lr_scale]
    lr = spec.optimizer.lr
    change = f"lr unchanged {lr:g}" if factor == 1 else f"lr {lr:g} → {lr * factor:g} ({spec.lr_scale})"
    return [f"global batch {own} → {whole}, {change}"]


def _with_data(spec: JobSpec, notes: list[str]) -> JobSpec:
    """Under --smoke, synthetic data where the data isn't on this machine."""
    path = spec.data.path
    if path is None or (Path(str(spec.workdir)) / Path(path).expanduser()).exists():
        return spec
    notes.append(f"{path} isn't here: the smoke run takes synthetic data")
    data = spec.data.model_copy(update={"source": "synthetic", "path": None, "args": {}})
    return spec.model_copy(update={"data": data})


def with_own_data(spec: JobSpec) -> JobSpec:
    """``spec`` for the launching machine itself: what it serves to the others, it reads from its disk."""
    if spec.data.location != "launcher":
        return spec
    own = {"location": "each-host", "path": str(data_folder(spec))}
    return spec.model_copy(update={"data": spec.data.model_copy(update=own)})


def for_host(
    spec: JobSpec, host: Host, workers: int, facts: dict[str, Any], *, smoke: bool
) -> tuple[JobSpec, list[str]]:
    """The spec as the workers of one host get it, from what its agent says; and lines for people.

    Of the hosts it has this one alone.
    """
    notes = []
    update: dict[str, Any] = {"hosts": [spec_entry(host)]}
    if host.data is not None:
        update["data"] = spec.data.model_copy(update={"path": host.data})
    if spec.threads is None:
        update["threads"] = max(1, facts["cores"] // workers)
    if smoke and spec.device == "auto" and facts.get("virtual_machine"):
        update["device"] = "cpu"
        notes.append("a virtual machine only advertises its GPU: the smoke run takes the CPU")
    return spec.model_copy(update=update), notes
