"""The end of every view names the link that the ring waited for."""

from __future__ import annotations

from typing import Any

from mlrun.console.model import Run
from mlrun.console.result import result
from mlrun.protocol import StateEvent, SummaryEvent


def lines(*links: dict[str, Any]) -> str:
    run = Run()
    run.apply(StateEvent("starting", {"name": "digits"}))
    run.apply(SummaryEvent({"status": "done", "links": list(links)}))
    return "\n".join(line.plain for line in result(run))


def link(one: str, other: str, kind: str | None, rate: float | None) -> dict[str, Any]:
    return {"hosts": [one, other], "kind": kind, "bytes_per_s": rate}


def test_the_slowest_link_is_named() -> None:
    told = lines(
        link("mac1", "mac2", "thunderbolt", 2.4e9),
        link("mac2", "mac3", "wifi", 38e6),
        link("mac3", "mac1", None, None),
    )
    assert "slowest of 3: mac2 → mac3 over wifi, 38.0 MB/s" in told


def test_one_link_is_told_plainly_and_unknown_ones_not_at_all() -> None:
    assert "mac1 → mac2, 110 MB/s" in lines(link("mac1", "mac2", None, 1.1e8))
    assert "→" not in lines(link("mac1", "mac2", "ethernet", None))
    assert "→" not in lines()
