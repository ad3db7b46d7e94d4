"""The predictor: how long a step takes, from how long its parts take.

Buckets of gradients become ready along the backward pass and are averaged one after the other, each once
the slowest rank has it. What the ring does after the backward pass is exposed. The cost of one all-reduce
is that of ``docs/ring.md``; reducing is counted with the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlrun.backends.sim.backend import FORWARD_SHARE
from mlrun.backends.sim.profiles import ELEMENT_BYTES, Bucket, profile
from mlrun.errors import RequestError

HANDLING_S = 150e-6
"""Until a message that has arrived is handled: threads wake up. Added to the link's delay."""
_EVEN_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Link:
    """The slowest link of the ring: bytes per second in each direction, and one-way delay."""

    bytes_per_s: float
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """All that a step's time depends on. ``compute_s``: of one step, for each rank."""

    compute_s: tuple[float, ...]
    buckets: tuple[Bucket, ...]
    link: Link
    wire_bytes: int = ELEMENT_BYTES
    """Per gradient element."""
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one step: of the slowest rank's computing, and of exposed communication."""

    compute_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s


def buckets_of(model: str, parameters: int, bucket_mb: float) -> tuple[Bucket, ...]:
    """The buckets of a model; of one without known layers, equal ones ready at equal distances."""
    try:
        known = profile(model)
        if known.parameters == parameters:
            return tuple(known.buckets(bucket_mb))
    except RequestError:
        pass
    number = max(1, min(_EVEN_BUCKETS, round(parameters * ELEMENT_BYTES / (bucket_mb * (1 << 20)))))
    return tuple(Bucket(parameters // number, (index + 1) / number) for index in range(number))


def all_reduce_s(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds that the ring takes for a large payload."""
    if ranks == 1:
        return 0.0
    turn = link.delay_s + HANDLING_S
    if ranks == 2:
        return 3 * turn + nbytes / link.bytes_per_s
    return (2 * (ranks - 1) + ranks // 2) * turn + (ranks - 1) / ranks * nbytes / link.bytes_per_s


def predict(setting: Setting) -> Prediction:
    """The time of a step. Simulated or real: the rule is the same."""
    slowest, ranks = max(setting.compute_s), len(setting.compute_s)
    costs = [
        all_reduce_s(bucket.elements * setting.wire_bytes, ranks, setting.link) for bucket in setting.buckets
    ]
    if not setting.overlap:
        return Prediction(slowest, sum(costs))
    free = 0.0
    for bucket, cost in zip(setting.buckets, costs, strict=True):
        ready = slowest * (FORWARD_SHARE + (1 - FORWARD_SHARE) * bucket.ready)
        free = max(free, ready) + cost
    return Prediction(slowest, max(0.0, free - slowest) if ranks > 1 else 0.0)


def remedies(setting: Setting) -> list[tuple[str, Prediction]]:
    """What would lift the limit, and what each would bring. A larger batch computes for longer too."""
    faster = Link(2 * setting.link.bytes_per_s, setting.link.delay_s)
    doubled = tuple(2 * each for each in setting.compute_s)
    found = [
        ("a batch twice as large", predict(replace(setting, compute_s=doubled))),
        ("a second cable, or a link twice as fast", predict(replace(setting, link=faster))),
    ]
    if setting.wire_bytes == ELEMENT_BYTES:
        found.append(("allreduce.wire_dtype: bf16", predict(replace(setting, wire_bytes=2))))
    if not setting.overlap:
        found.append(("allreduce.overlap: true", predict(replace(setting, overlap=True))))
    return found


def efficiency(prediction: Prediction, alone_s: float) -> float:
    """Of a run whose every worker would take ``alone_s`` for its samples alone."""
    return alone_s / prediction.step_s


def slowest_link(edges: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The measured link with the least bandwidth while all carry data; None where none was measured."""
    measured = [edge for edge in edges if edge["bytes_per_s"] is not None]
    return min(measured, key=lambda edge: float(edge["bytes_per_s_together"]), default=None)


def rate_in_ring(rings: Sequence[Sequence[dict[str, Any]]], workers: int) -> float | None:
    """Bytes per second of the slowest link in a ring of ``workers`` hosts, from the edges of measured rings.

    Two hosts have their one link for themselves. Where only such a one was measured, a larger ring is taken
    to have a cable for each edge if it is Thunderbolt, and else one switch, whose ports two edges share.
    """
    wanted = [ring for ring in rings if (len(ring) == 1) == (workers == 2)]
    edge = slowest_link([edge for ring in wanted or rings for edge in ring])
    if edge is None:
        return None
    if workers == 2:
        return float(edge["bytes_per_s"])
    unseen = not wanted and "thunderbolt" not in (edge["kind"] or "")
    return float(edge["bytes_per_s_together"]) / (2 if unseen else 1)
