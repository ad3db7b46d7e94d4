"""Who holds the others back, and why: one line for each, out of what the events tell."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from mlrun.console import text
from mlrun.console.model import Run, Split, Worker
from mlrun.protocol import TelemetryEvent

SLOWER = 0.15
"""A rank whose own work takes this much longer than the others' holds them back."""
NOTICEABLE_MS = 1.0
SLOW_LINK = 10.0
"""A link that carried so many times less than the best one."""
SILENCE_S = 8.0
"""Without a step of any rank, and at least four times as long as steps usually take to be told."""
BUSY_PERCENT = 95.0

LINK_NAMES = {
    "thunderbolt": "Thunderbolt",
    "thunderbolt-bridge": "TB bridge",
    "ethernet": "Ethernet",
    "wifi": "Wi-Fi",
    "vpn": "VPN",
    "virtual": "virtual",
    "loopback": "loopback",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs every rank time. ``kind``: stopped | silent | slower | link."""

    kind: str
    rank: int | None
    text: str


def findings(run: Run) -> list[Finding]:
    """The gravest first. Empty where all is well, and where too little is known."""
    if run.summary is not None:
        return []
    ranks = sorted(run.workers.values(), key=lambda w: w.rank)
    stopped = [
        Finding("stopped", w.rank, f"{_place(w)} is stopped (SIGSTOP or Ctrl-Z): the others wait")
        for w in ranks
        if w.state == "stopped"
    ]
    return [*stopped, *(() if stopped else _silent(run, ranks)), *_slower(run, ranks), *_links(run, ranks)]


def _place(worker: Worker) -> str:
    return f"rank {worker.rank}" if worker.host is None else f"rank {worker.rank} ({worker.host})"


def _silent(run: Run, ranks: list[Worker]) -> Iterator[Finding]:
    """Each rank's silence by the clock of its own host, whose telemetry goes on."""
    if not ranks or any(w.state != "training" or not w.recent.events for w in ranks):
        return
    silences = [
        run.of_host(w).time - w.recent.events[-1].time > max(SILENCE_S, 4 * w.recent.events[-1].seconds)
        for w in ranks
    ]
    if all(silences):
        longest = max(run.of_host(w).time - w.recent.events[-1].time for w in ranks)
        yield Finding("silent", None, f"no rank has told of a step for {text.duration(longest)}")


def _slower(run: Run, ranks: list[Worker]) -> Iterator[Finding]:
    known = [(w, w.steady_split) for w in ranks if w.steady_split is not None and w.state == "training"]
    if len(known) < 2 or len(known) < len(ranks):
        return
    for worker, split in known:
        others = [other for peer, other in known if peer is not worker]
        usual = statistics.median(other.own_ms for other in others)
        more = split.own_ms - usual
        if usual > 0 and more > SLOWER * usual and more > NOTICEABLE_MS:
            told = f"{_place(worker)} is {100 * more / usual:.0f} % slower: "
            yield Finding("slower", worker.rank, told + _reason(run, worker, split, others, more))


def _reason(run: Run, worker: Worker, split: Split, others: list[Split], more_ms: float) -> str:
    data = split.data_ms - statistics.median(other.data_ms for other in others)
    if data > more_ms / 2:
        return f"its data comes {text.milliseconds(data)} later"
    elsewhere = {w.host for w in run.workers.values()} - {worker.host}
    told = [run.telemetry[host] for host in elsewhere if host in run.telemetry]
    # Ranks of one host are equally hot: its state is no reason where there is no other host.
    reason = _hosts_reason(run.of_host(worker), told) if elsewhere else None
    return reason or f"its own work takes {text.milliseconds(more_ms)} longer"


def _hosts_reason(told: TelemetryEvent, others: list[TelemetryEvent]) -> str | None:
    if told.thermal not in (None, "nominal"):
        return f"thermal pressure ({told.thermal})"
    if told.low_power:
        return "low power mode is on"
    if told.power == "battery":
        return "it runs on battery"
    chips = {other.chip for other in others}
    if told.chip is not None and chips and None not in chips and told.chip not in chips:
        return f"its chip is {told.chip}, others have {', '.join(sorted(filter(None, chips)))}"
    if told.cpu_percent is not None and told.cpu_percent >= BUSY_PERCENT:
        return f"all its cores are busy ({text.percent(told.cpu_percent)})"
    return None


def _links(run: Run, ranks: list[Worker]) -> Iterator[Finding]:
    links = [(w, found[0], found[1]) for w in ranks if (found := run.next_link(w)) is not None]
    best = max((link.measured for _, _, link in links if link.measured is not None), default=None)
    for worker, peer, link in links:
        there = run.workers[peer].host if peer in run.workers else None
        way = f"{worker.host or worker.rank} → {there or peer}"
        if link.kind == "wifi":
            yield Finding("link", worker.rank, f"{way} runs over Wi-Fi: a cable would carry far more")
        elif link.measured is not None and best is not None and link.measured * SLOW_LINK <= best:
            rates = f"{text.size(link.measured)}/s, where the best link carries {text.size(best)}/s"
            yield Finding("link", worker.rank, f"{way} carries {rates}")
