"""Layers of real models, their parameters and FLOPs, and when a bucket of gradients is ready."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from mlrun.errors import RequestError

ELEMENT_BYTES = 4
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer with parameters: forward FLOPs per sample, and elements of each parameter."""

    flops: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel together. ``ready``: share of the backward pass after which all are there."""

    elements: int
    ready: float


@dataclass(frozen=True, slots=True)
class Profile:
    """A model's layers in the order of its forward pass, and what one of its samples is called."""

    unit: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        return sum(sum(layer.sizes) for layer in self.layers)

    def buckets(self, bucket_mb: float) -> list[Bucket]:
        """Gradients in the order of the backward pass, in buckets of about ``bucket_mb`` MiB.

        Like torch's DistributedDataParallel: a bucket closes once it holds so much, and never splits a
        parameter. A layer's share of the backward pass is its share of the FLOPs.
        """
        whole = sum(layer.flops for layer in self.layers)
        done, held = 0, 0
        buckets = []
        for layer in reversed(self.layers):
            done += layer.flops
            for size in reversed(layer.sizes):
                held += size
                if held * ELEMENT_BYTES >= bucket_mb * _MIB:
                    buckets.append(Bucket(held, done / whole))
                    held = 0
        if held:
            buckets.append(Bucket(held, 1.0))
        return buckets


def profile(name: str) -> Profile:
    """The profile of a model.

    Raises:
        RequestError: there is none of this name.
    """
    known = json.loads(resources.files(__package__).joinpath("profiles.json").read_text())
    if name not in known:
        raise RequestError(
            f"model.name: framework sim has no layer sizes of {name!r}", fix=f"use one of {', '.join(known)}"
        )
    layers = tuple(Layer(flops, tuple(sizes)) for flops, sizes in known[name]["layers"])
    return Profile(known[name]["unit"], layers)
