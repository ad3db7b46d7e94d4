"""The ring engine's collectives, with ranks as threads over loopback sockets."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ring_ranks import DEADLINE_S, make_ring, on_each, results_of

from mlrun.allreduce.communicator import AbortedError, Buffer, DType, Op
from mlrun.allreduce.ring import RingCommunicator

SIZES = [1, 2, 3, 4, 5, 8]
COUNTS = [0, 1, 7, 1000, 100_003]


def values(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(-50, 50, count).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sockets", [1, 3])
def test_collectives_move_and_reduce_everything(size: int, sockets: int) -> None:
    def work(ring: RingCommunicator) -> None:
        for count in COUNTS:
            every = [values(rank, count) for rank in range(size)]
            reduced = every[ring.rank].copy()
            ring.all_reduce(Buffer.of(reduced)).wait()
            np.testing.assert_array_equal(reduced, sum(every))

            copied = every[ring.rank].copy()
            ring.broadcast(Buffer.of(copied), root=size - 1).wait()
            np.testing.assert_array_equal(copied, every[size - 1])

            gathered = np.zeros(size * count, np.float32)
            ring.all_gather(Buffer.of(every[ring.rank].copy()), Buffer.of(gathered)).wait()
            np.testing.assert_array_equal(gathered, np.concatenate(every))

            source = np.concatenate(every) * (ring.rank + 1)
            kept, part = source.copy(), np.zeros(count, np.float32)
            ring.reduce_scatter(Buffer.of(source), Buffer.of(part)).wait()
            np.testing.assert_array_equal(part, every[ring.rank] * sum(range(1, size + 1)))
            np.testing.assert_array_equal(source, kept)

            parts = np.repeat(np.arange(size), count) + 100 * ring.rank
            swapped = np.zeros_like(parts)
            ring.all_to_all(Buffer.of(parts), Buffer.of(swapped)).wait()
            np.testing.assert_array_equal(swapped, np.repeat(np.arange(size), count) * 100 + ring.rank)

    results_of(make_ring(size, sockets), work)


def test_reduce_scatter_larger_than_its_scratch() -> None:
    count = 1_500_001

    def work(ring: RingCommunicator) -> None:
        source = np.repeat(np.arange(4, dtype=np.float32), count) + ring.rank
        part = np.zeros(count, np.float32)
        ring.reduce_scatter(Buffer.of(source), Buffer.of(part), Op.AVERAGE).wait()
        assert (part == ring.rank + 1.5).all()

    results_of(make_ring(4), work)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_uneven_all_to_all(size: int) -> None:
    def work(ring: RingCommunicator) -> None:
        source_counts = [1000 * (ring.rank + peer) for peer in range(size)]
        source = np.full(sum(source_counts), ring.rank, np.int64)
        target = np.full(sum(source_counts), -1, np.int64)
        ring.all_to_all(Buffer.of(source), Buffer.of(target), source_counts, source_counts).wait()
        np.testing.assert_array_equal(target, np.repeat(np.arange(size), source_counts))

    results_of(make_ring(size), work)


@pytest.mark.parametrize("wire", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("count", [10, 50_000])
@pytest.mark.parametrize("size", [2, 4])
def test_narrow_wire_gives_the_same_bits_everywhere(size: int, count: int, wire: DType) -> None:
    every = [np.random.default_rng(rank).standard_normal(count).astype(np.float32) for rank in range(size)]

    def work(ring: RingCommunicator) -> np.ndarray[Any, Any]:
        reduced: np.ndarray[Any, Any] = every[ring.rank].copy()
        ring.all_reduce(Buffer.of(reduced), Op.AVERAGE, wire_dtype=wire).wait()
        return reduced

    results = results_of(make_ring(size), work)
    bound = size * 2.0**-8 * np.sum(np.abs(every), axis=0) / size
    assert (np.abs(results[0] - np.mean(every, axis=0)) <= bound).all()
    for other in results[1:]:
        assert other.tobytes() == results[0].tobytes()


def test_bits_depend_on_neither_sockets_nor_timing() -> None:
    every = [np.random.default_rng(rank).standard_normal(300_001).astype(np.float32) for rank in range(3)]

    def work(ring: RingCommunicator) -> bytes:
        reduced = every[ring.rank].copy()
        ring.all_reduce(Buffer.of(reduced)).wait()
        return bytes(reduced.tobytes())

    runs = [results_of(make_ring(3, sockets), work) for sockets in (1, 1, 2, 4)]
    assert len({bits for run in runs for bits in run}) == 1


def test_messages_match_by_source_and_tag_in_order() -> None:
    def work(ring: RingCommunicator) -> None:
        far = (ring.rank + 2) % 5
        source = (ring.rank - 2) % 5
        sent = [np.full(100_000, 10 * ring.rank + i, np.int32) for i in range(4)]
        received = [np.zeros(100_000, np.int32) for _ in range(4)]
        # The tags are received in another order than they are sent in.
        works = [ring.recv(Buffer.of(received[i]), source, tag=i % 2) for i in (1, 3, 0, 2)]
        works += [ring.send(Buffer.of(each), far, tag=i % 2) for i, each in enumerate(sent)]
        for under_way in works:
            under_way.wait()
        for i, each in enumerate(received):
            assert (each == 10 * source + i).all()

    results_of(make_ring(5), work)


def test_groups_of_ranks_that_are_no_neighbours() -> None:
    def work(ring: RingCommunicator) -> None:
        outer = ring.split([4, 0, 2])
        inner = ring.split([1, 3])
        assert (outer is None) != (inner is None)
        group = outer or inner
        assert group is not None
        for count in (1, 300_001):
            data = np.full(count, ring.rank, np.float64)
            group.all_reduce(Buffer.of(data)).wait()
            assert (data == (6 if outer else 4)).all()
            source = np.full(group.size * count, ring.rank, np.float64)
            part = np.zeros(count)
            group.reduce_scatter(Buffer.of(source), Buffer.of(part)).wait()
            assert (part == (6 if outer else 4)).all()

    results_of(make_ring(5), work)


def test_many_in_flight_end_with_the_right_values() -> None:
    def work(ring: RingCommunicator) -> None:
        data = [np.full(1 + 997 * i, i + ring.rank, np.float32) for i in range(100)]
        works = [ring.all_reduce(Buffer.of(each), name=f"bucket {i}") for i, each in enumerate(data)]
        for i, (each, done) in enumerate(zip(data, works, strict=True)):
            done.wait()
            assert (each == 4 * i + 6).all()
            times = done.times()
            assert times is not None
            assert times[0] <= times[1]

    results_of(make_ring(4), work)


def test_memory_of_a_dropped_work_is_kept() -> None:
    def work(ring: RingCommunicator) -> None:
        for i in range(50):
            ring.all_reduce(Buffer.of(np.full(100_000, i, np.float32)))
        ring.barrier().wait()

    results_of(make_ring(2), work)


def test_a_communicator_dropped_with_calls_under_way_tells_the_others() -> None:
    rings = make_ring(2)
    waiting = rings[1].recv(Buffer.of(np.zeros(1)), source=0)
    rings[0].all_reduce(Buffer.of(np.zeros(1 << 20)))
    del rings[0]
    with pytest.raises(AbortedError, match=r"rank 0 .* dropped with calls under way"):
        waiting.wait(DEADLINE_S)


def test_memory_behind_a_call_that_lasts_is_let_go() -> None:
    def work(ring: RingCommunicator) -> int:
        other = ring.split([0, 1])
        assert other is not None
        late = np.zeros(1)
        lasting = other.recv(Buffer.of(late), source=0) if ring.rank == 1 else None
        lent = []
        for _ in range(300):
            data = np.ones(10)
            lent.append(weakref.ref(data))
            ring.all_reduce(Buffer.of(data)).wait()
        held = sum(each() is not None for each in lent)
        if lasting is None:
            other.send(Buffer.of(np.ones(1)), to=1).wait()
        else:
            lasting.wait(DEADLINE_S)
            assert late[0] == 1
        return held

    assert max(results_of(make_ring(2), work)) < 150


@pytest.mark.parametrize("size", [2, 3, 5])
def test_calls_end_though_nobody_waits_for_them(size: int) -> None:
    turns = [threading.Event() for _ in range(size + 1)]
    turns[0].set()

    def work(ring: RingCommunicator) -> None:
        data = np.full(100_000, ring.rank, np.float32)
        ring.barrier().wait()
        assert turns[ring.rank].wait(DEADLINE_S)
        call = ring.all_reduce(Buffer.of(data))
        turns[ring.rank + 1].set()
        deadline = time.monotonic() + DEADLINE_S
        while not call.done():
            assert time.monotonic() < deadline, "the call doesn't end"
            time.sleep(0.001)
        assert (data == sum(range(size))).all()

    results_of(make_ring(size), work)


MEMORY_OF_A_CALL = """
import resource, sys
import numpy as np
from ring_ranks import make_ring, results_of
from mlrun.allreduce.communicator import Buffer, DType

data = [np.ones(16 << 20, np.float32) for _ in range(2)]
ring = make_ring(2, sockets=8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
results_of(ring, lambda each: each.all_reduce(Buffer.of(data[each.rank]), wire_dtype=DType.BFLOAT16).wait())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert (data[0] == 2).all()
print((after - before) >> (20 if sys.platform == "darwin" else 10))
"""


def test_scratch_grows_with_neither_payload_nor_sockets() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_CALL],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert int(ended.stdout) < 64  # MB, of two ranks with 64 MB each


def test_checksums_accept_what_is_whole() -> None:
    def work(ring: RingCommunicator) -> None:
        data = np.full(200_001, ring.rank, np.float32)
        ring.all_reduce(Buffer.of(data)).wait()
        assert (data == 3).all()

    results_of(make_ring(3, checksum=True), work)


def test_counters_tell_what_travelled() -> None:
    ring = make_ring(3)

    def work(communicator: RingCommunicator) -> None:
        communicator.all_reduce(Buffer.of(np.zeros(3_000_000, np.uint8))).wait()
        communicator.barrier().wait()

    results_of(ring, work)
    for communicator in ring:
        counters = communicator.counters()
        assert [each.peer for each in counters] == [(communicator.rank + 1) % 3, (communicator.rank - 1) % 3]
        for each in counters:
            assert each.bytes_sent >= 2_000_000
            assert each.bytes_received >= 2_000_000


def test_paced_links_and_delay_still_carry_everything() -> None:
    def work(ring: RingCommunicator) -> None:
        data = np.full(100_000, ring.rank, np.float32)
        ring.all_reduce(Buffer.of(data)).wait()
        assert (data == 1).all()

    results_of(make_ring(2, pace_mbit_s=500.0, pace_delay_us=200.0), work)


def test_wait_can_be_bounded() -> None:
    def work(ring: RingCommunicator) -> None:
        if ring.rank == 0:
            barrier = ring.barrier()
            with pytest.raises(TimeoutError):
                barrier.wait(0.05)
            ring.send(Buffer.of(np.zeros(1)), 1).wait()
            barrier.wait()
        else:
            ring.recv(Buffer.of(np.zeros(1)), 0).wait()
            ring.barrier().wait()

    results_of(make_ring(2), work)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda ring: ring.send(Buffer.of(np.zeros(1)), ring.rank), "itself"),
        (lambda ring: ring.broadcast(Buffer.of(np.zeros(1)), 7), "rank 7"),
        (lambda ring: ring.all_reduce(Buffer.of(np.zeros(1, bool)), Op.AVERAGE), "no average"),
        (lambda ring: ring.all_reduce(Buffer.of(np.zeros(1)), wire_dtype=DType.FLOAT16), "FLOAT32"),
        (lambda ring: ring.all_gather(Buffer.of(np.zeros(1)), Buffer.of(np.zeros(3))), "size x"),
    ],
)
def test_calls_that_make_no_sense_are_refused_at_once(call: Any, part: str) -> None:
    for result in on_each(make_ring(2), call):
        assert isinstance(result, ValueError)
        assert part in str(result)
