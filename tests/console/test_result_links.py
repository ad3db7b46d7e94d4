"""The end of every view names the link that the ring waited for, and what came of data that lie elsewhere."""

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


def test_what_came_over_the_wire_and_from_caches_is_told_where_data_lie_elsewhere() -> None:
    def told(*ranks: dict[str, Any]) -> str:
        run = Run()
        run.apply(StateEvent("starting", {"name": "photographs"}))
        run.apply(SummaryEvent({"status": "done", "ranks": list(ranks)}))
        return "\n".join(line.plain for line in result(run))

    unknown = {"rank": 0, "bytes_fetched": None, "files_fetched": None, "files_cached": None}
    some = {"rank": 1, "bytes_fetched": 2_500_000, "files_fetched": 1200, "files_cached": 40}
    assert "fetched: 2.5 MB in 1,200 files, read from the hosts' caches: 40 files" in told(unknown, some)
    assert "fetched: none" in told({**some, "bytes_fetched": 0, "files_fetched": 0})
    assert "fetched" not in told(unknown)
