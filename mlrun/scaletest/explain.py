"""Why a run isn't as fast as its workers alone would be, in words with numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mlrun.scaletest.measure import Point, RankTime
from mlrun.scaletest.model import Setting, efficiency, predict, remedies, slowest_link

_WORTH_SAYING = 0.03
"""A rank so much slower than the median is named."""


def base(points: Sequence[Point], point: Point) -> Point:
    """What a point is compared with: the one worker of its series, which is measured first."""
    return next(each for each in points if each.series == point.series)


def speed_up(points: Sequence[Point], point: Point) -> float:
    """Over one worker."""
    return point.speed / base(points, point).speed


def measured_efficiency(points: Sequence[Point], point: Point) -> float:
    return speed_up(points, point) / point.workers


def explain(point: Point) -> str:
    """Where a step's time went, and who or what is to blame for the part that wasn't computing."""
    if point.workers == 1:
        return f"a step takes {_ms(point.step_s)}"
    causes = []
    slow = _slow_rank(point.ranks)
    if slow is not None:
        causes.append(slow)
    if point.exposed_s > 0:
        causes.append(f"exposed communication {_ms(point.exposed_s)} of {_ms(point.step_s)}{_link(point)}")
    return "; ".join(causes)


def shared_cores(point: Point) -> str | None:
    """A word of warning where workers that compute share a host; simulated ones don't compute."""
    hosts = [rank.host for rank in point.ranks]
    most = max(hosts, key=hosts.count)
    if point.simulated or hosts.count(most) == 1:
        return None
    return (
        f"{hosts.count(most)} workers share the cores of {most}: this says what mlrun costs there, "
        "and nothing of as many Macs"
    )


def foresee(setting: Setting, alone_s: float) -> str:
    """What comes first to limit a predicted run, and what would lift it."""
    now = predict(setting)
    before = efficiency(now, alone_s)
    if now.exposed_s < 0.01 * now.step_s:
        return f"{before:.1%}: communication hides behind the backward pass"
    lifted = [
        (name, efficiency(after, alone_s * (after.compute_s / now.compute_s)))
        for name, after in remedies(setting)
    ]
    name, best = max(lifted, key=lambda each: each[1])
    return (
        f"{before:.1%}: {_ms(now.exposed_s)} of {_ms(now.step_s)} is exposed communication; "
        f"{name} would make it {best:.1%}"
    )


def _slow_rank(ranks: Sequence[RankTime]) -> str | None:
    """By time per sample, so that a host with a larger batch isn't blamed for it."""
    per_sample = [rank.compute_s / rank.samples for rank in ranks]
    usual = statistics.median(per_sample)
    worst = max(range(len(ranks)), key=per_sample.__getitem__)
    if per_sample[worst] <= (1 + _WORTH_SAYING) * usual:
        return None
    slow = ranks[worst]
    several = sum(rank.host == slow.host for rank in ranks) > 1
    name = f"rank {slow.rank} on {slow.host}" if several else slow.host
    return f"{name} is {per_sample[worst] / usual - 1:.0%} slower than the median of the workers"


def _link(point: Point) -> str:
    edge = slowest_link(point.links)
    if edge is not None:
        one, other = edge["hosts"]
        return f": the slowest link is {one} → {other} at {edge['bytes_per_s'] * 8 / 1e9:.2g} Gbit/s"
    return f": links are paced to {point.pace_mbit_s:g} Mbit/s" if point.pace_mbit_s is not None else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
