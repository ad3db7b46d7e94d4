"""Who holds the others back, and the reason that is told."""

from dataclasses import replace

import pytest

from mlrun.console.findings import findings
from mlrun.console.model import Run
from mlrun.protocol import (
    LinkEvent,
    StateEvent,
    StepEvent,
    SummaryEvent,
    TelemetryEvent,
)


def step(rank, at=10.0, own_s=1.0, data_s=0.1, total_s=2.0):
    return StepEvent(
        10,
        100,
        0,
        10,
        640,
        total_s,
        data_s,
        own_s - data_s,
        total_s - own_s,
        0.1,
        time=at,
        rank=rank,
        host=f"mac{rank}",
    )


def host(rank, at=10.0, **told):
    return TelemetryEvent(**told, time=at, host=f"mac{rank}")


def link(rank, kind="thunderbolt", measured=2.4e9, at=10.0, sent=0):
    return LinkEvent(
        (rank + 1) % 3, kind, sent, sent, 0.0, 0.0, measured, time=at, rank=rank, host=f"mac{rank}"
    )


def told(*events, world_size=3):
    run = Run()
    for event in (StateEvent("starting", {"world_size": world_size}, time=1.0), *events):
        run.apply(event)
    return [finding.text for finding in findings(run)]


EQUAL = [step(0), step(1), step(2)]
SLOW = [step(0), step(1), step(2, own_s=1.3)]


def test_nothing_is_found_where_all_is_well():
    assert told(*EQUAL, *(link(rank) for rank in range(3))) == []


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ([], "its own work takes 30.0 ms longer"),
        ([host(2, thermal="heavy", low_power=True)], "thermal pressure (heavy)"),
        ([host(2, thermal="nominal", low_power=True, power="battery")], "low power mode is on"),
        ([host(2, low_power=False, power="battery")], "it runs on battery"),
        (
            [host(0, chip="Apple M3 Max"), host(1, chip="Apple M3 Max"), host(2, chip="Apple M1")],
            "its chip is Apple M1, others have Apple M3 Max",
        ),
        ([host(2, cpu_percent=99.0, power="mains")], "all its cores are busy (99 %)"),
    ],
)
def test_a_straggler_is_named_with_the_reason(about, reason):
    assert told(*SLOW, *about) == [f"rank 2 (mac2) is 30 % slower: {reason}"]


def test_late_data_is_a_reason():
    assert told(step(0), step(1), step(2, own_s=1.4, data_s=0.5)) == [
        "rank 2 (mac2) is 40 % slower: its data comes 40.0 ms later"
    ]


def test_the_state_of_the_only_host_is_no_reason_for_one_of_its_ranks():
    steps = [replace(step(rank, own_s=1.0 + (rank == 2)), host="mac0") for rank in range(3)]
    assert told(*steps, host(0, thermal="heavy")) == [
        "rank 2 (mac0) is 100 % slower: its own work takes 100 ms longer"
    ]


def test_the_slower_of_two_is_named():
    assert told(step(0), step(1, own_s=2.0), world_size=2) == [
        "rank 1 (mac1) is 100 % slower: its own work takes 100 ms longer"
    ]


def test_nobody_is_slower_before_everybody_has_told():
    assert told(step(0), step(1, own_s=1.9), StateEvent("starting", rank=2, host="mac2", time=1.0)) == []


def test_a_stopped_worker_is_named_alone_and_no_more_once_it_steps():
    stopped = StateEvent("stopped", time=11.0, rank=1, host="mac1")
    events = [*EQUAL, stopped, *(host(rank, at=60.0) for rank in range(3))]
    (only,) = told(*events)
    assert only.startswith("rank 1 (mac1) is stopped")
    assert told(*EQUAL, stopped, step(1, at=12.0)) == []


def test_silence_of_all_ranks_is_told_by_their_own_clocks():
    later = [host(rank, at=30.0) for rank in range(3)]
    assert told(*EQUAL, *later) == ["no rank has told of a step for 0:20"]
    assert told(*EQUAL, *later[:2]) == []


def test_slow_links_are_named():
    assert told(*EQUAL, link(0), link(1, "wifi", 60e6), link(2, "ethernet", 117e6)) == [
        "mac1 → mac2 runs over Wi-Fi: a cable would carry far more",
        "mac2 → mac0 carries 117 MB/s, where the best link carries 2.4 GB/s",
    ]


def test_a_link_rate_is_that_of_the_last_period():
    run = Run()
    for event in (*EQUAL, link(0, sent=100, at=10.0), link(0, sent=2100, at=12.0)):
        run.apply(event)
    _, found = run.next_link(run.workers[0])
    assert found.rate == pytest.approx(1000)


def test_a_run_that_is_over_has_no_findings():
    assert told(*SLOW, SummaryEvent({"status": "done"}, time=20.0)) == []


def test_images_per_watt_counts_all_ranks_of_a_host():
    run = Run()
    steps = [StepEvent(1, 2, 0, 1, 100, 1.0, 0, 1, 0, 0.1, time=2.0, rank=r, host="mac") for r in (0, 1)]
    for event in (*steps, TelemetryEvent(gpu_watts=50.0, time=2.0, host="mac")):
        run.apply(event)
    assert run.per_watt(run.workers[0]) == pytest.approx(4.0)
    run.apply(TelemetryEvent(time=3.0, host="mac"))
    assert run.per_watt(run.workers[0]) is None
