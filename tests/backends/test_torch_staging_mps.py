"""MPS tensors through a real ring of two ranks, over a fake Metal; and what a broken rule leads to."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fake_metal import GPU_S, FakeMetal

from mlrun.allreduce import engines
from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.links import Listener
from mlrun.backends.torch.lane import Deferred
from mlrun.backends.torch.process_group import MlrunProcessGroup
from mlrun.backends.torch.staging.base import Copied, CopyStaging, Staged
from mlrun.backends.torch.staging.mps import MpsStaging, _Fenced
from mlrun.backends.torch.work import GroupWork
from mlrun.protocol import Plan

BUCKETS = (1000, 1, 70_000, 33)
STALE = -7.0
ALLOWED_BESIDE_THE_ISSUER = {"Event.synchronize", "Event.query"}


class Rank:
    """One rank's group on a Metal of its own. ``reduce`` is a backward pass on one thread."""

    def __init__(self, communicator: Communicator, metal: FakeMetal) -> None:
        self.metal = metal
        self.group = MlrunProcessGroup(communicator)
        staging = MpsStaging(metal)
        self.group.choose_staging = lambda device: staging
        self.issuer = 0
        self.seen: list[torch.Tensor] = []

    def reduce(self) -> list[torch.Tensor]:
        """Buckets as a first use of their gradients sees them, when their future completes."""
        self.issuer = threading.get_ident()
        gates, buckets, works, futures = [], [], [], []
        for index, size in enumerate(BUCKETS):
            gate, bucket = threading.Event(), torch.full((size,), STALE)
            self.metal.encode(lambda gate=gate: gate.wait(GPU_S))
            self.metal.encode(lambda bucket=bucket, index=index: bucket.fill_(self._gradient(index)))
            work = self.group.reduce_bucket(bucket, None, f"bucket {index}")
            futures.append(work.bucket_future().then(lambda future: future.value().clone()))
            gates.append(gate)
            buckets.append(bucket)
            works.append(work)
        # All were issued and the GPU has computed none of them. Now it does, as soon as somebody waits for it
        # (or, where nobody does, has had the time to go wrong).
        for gate, work in zip(gates, works, strict=True):
            if not self.metal.waited_for.acquire(timeout=0.5):
                work.wait()
            gate.set()
        for work in works:
            work.wait()
        return [future.wait() for future in futures]

    def _gradient(self, bucket: int) -> float:
        return float(self.group.rank() + 1 + 10 * bucket)


def reduced_on_two(holds_gil: bool = False, **settings: Any) -> list[Rank]:
    """Two ranks that have reduced; fails where a result is wrong."""
    listeners = [Listener(["127.0.0.1"]) for _ in range(2)]
    plan = Plan(0, "ring", [each.endpoints for each in listeners], ["mac-0", "mac-1"], settings)
    secret = secrets.token_hex(32)
    metals = [FakeMetal(holds_gil=holds_gil and rank == 0) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        connecting = [
            threads.submit(engines.connect, plan, rank, listener, secret)
            for rank, listener in enumerate(listeners)
        ]
        communicators = [each.result(60) for each in connecting]
        ranks = [Rank(each, metal) for each, metal in zip(communicators, metals, strict=True)]
        try:
            results = [each.result(60) for each in [threads.submit(rank.reduce) for rank in ranks]]
        finally:
            for rank in ranks:
                rank.group.abort()
            for rank, listener in zip(ranks, listeners, strict=True):
                rank.group.shutdown()
                rank.metal.close()
                listener.close()
    for result in results:
        for index, (bucket, size) in enumerate(zip(result, BUCKETS, strict=True)):
            right = torch.full((size,), 3.0 + 20 * index)
            assert torch.equal(bucket, right), f"bucket {index} is wrong"
    return ranks


def test_buckets_are_issued_before_the_gpu_has_them_and_reduced_when_it_has() -> None:
    reduced_on_two()


def test_beside_the_issuing_thread_only_the_event_is_waited_for() -> None:
    for rank in reduced_on_two():
        beside = {name for thread, name in rank.metal.calls if thread != rank.issuer}
        assert beside <= ALLOWED_BESIDE_THE_ISSUER
        assert "Event.synchronize" in beside


def test_the_issuing_thread_only_records_and_aliases() -> None:
    for rank in reduced_on_two():
        own = {name for thread, name in rank.metal.calls if thread == rank.issuer}
        assert own - {"Event.__del__"} == {"_host_alias_storage", "Event", "Event.record"}


def test_without_the_fence_results_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Fenced, "ready", lambda self: None)
    with pytest.raises(AssertionError, match="bucket 0 is wrong"):
        reduced_on_two()


def test_waiting_with_the_gil_held_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="didn't get there while this thread waited"):
        reduced_on_two(holds_gil=True)


def test_a_future_completed_before_the_ring_has_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With links so slow that the order can't come out right by chance."""
    monkeypatch.setattr(Deferred, "wait", lambda self, timeout_s=None: self._settled.wait(GPU_S))
    with pytest.raises(AssertionError, match="bucket 0 is wrong"):
        reduced_on_two(pace_delay_us=100_000.0)


@pytest.fixture
def slow_work() -> Callable[[Staged], Any]:
    """An engine that doubles what it is given, but only when it is waited for."""

    class Slow:
        def __init__(self, staged: Staged) -> None:
            self._staged = staged

        def wait(self, timeout_s: float | None = None) -> None:
            self._staged.host.mul_(2.0)

        def done(self) -> bool:
            return False

        def times(self) -> None:
            return None

    return Slow


def test_a_copy_brought_back_before_the_engine_is_done_is_noticed(
    slow_work: Callable[[Staged], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled() -> list[float]:
        tensor = torch.ones(3)
        staged = CopyStaging().issue([tensor])
        GroupWork([slow_work(staged)], [staged], [tensor], None).wait()  # type: ignore[arg-type]
        return tensor.tolist()

    assert doubled() == [2.0] * 3
    settle = GroupWork._settle_once

    def reordered(work: GroupWork, deadline: float | None) -> None:
        for staged in work._written:
            staged.publish()
        monkeypatch.setattr(Copied, "publish", lambda self: None)
        settle(work, deadline)

    monkeypatch.setattr(GroupWork, "_settle_once", reordered)
    assert doubled() != [2.0] * 3


def test_events_and_aliases_are_given_back_where_they_were_made() -> None:
    metal = FakeMetal()
    staging = MpsStaging(metal)
    staged = staging.issue([torch.ones(3)])
    with ThreadPoolExecutor(1) as other:
        other.submit(staged.ready).result(GPU_S)
        other.submit(staged.end).result(GPU_S)
    del staged
    assert not any(name == "Event.__del__" for _, name in metal.calls)
    staging.issue([torch.ones(3)])
    assert (threading.get_ident(), "Event.__del__") in metal.calls
    metal.close()


@pytest.mark.parametrize(
    "tensors",
    [[torch.ones(2, 3).t()], [torch.ones(2), torch.ones(3)], [torch.ones(0)]],
    ids=["strided", "several", "empty"],
)
def test_what_has_no_single_alias_is_copied_by_its_own_thread(tensors: list[torch.Tensor]) -> None:
    metal = FakeMetal()
    staged = MpsStaging(metal).issue(tensors)
    assert isinstance(staged, Copied)
    assert not metal.calls
    metal.close()


def test_a_view_is_reduced_at_its_place_in_the_storage() -> None:
    metal = FakeMetal()
    whole = torch.arange(10.0)
    staged = MpsStaging(metal).issue([whole[4:8]])
    staged.ready()
    staged.host.mul_(2.0)
    assert whole.tolist() == [0, 1, 2, 3, 8, 10, 12, 14, 8, 9]
    metal.close()
