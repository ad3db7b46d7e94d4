"""Where it is trained and over what: hosts, links and the all-reduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from mlrun.spec.block import Block, Conflict


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


class Hooks(Block):
    """Commands of the launching machine, run by its shell once the run has ended."""

    done: str | None = Field(default=None, description="Run after a run that came to its end")
    failed: str | None = Field(default=None, description="Run after a run that failed")


class HostBlock(Block):
    """A host with more to say than ``name:slots``."""

    name: str = Field(description="What ssh calls it")
    address: str | None = Field(default=None, description="Where ssh finds it, when not by its name")
    user: str | None = Field(default=None, description="User to log in as")
    python: str | None = Field(default=None, description="The Python with mlrun on this host")
    workdir: str | None = Field(
        default=None, description="Folder with the code on this host; by default the work folder is sent"
    )
    data: str | None = Field(default=None, description="data.path on this host, where it is another one")
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
