"""Every collective against numpy: 1 to 8 ranks, every type and operation, all sizes and addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlrun.allreduce.communicator import NUMPY, Buffer, Communicator, DType, Op

Array = np.ndarray[Any, Any]

FLOATS = {DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16}
REDUCTIONS = [(dtype, op) for dtype in DType for op in Op if (dtype, op) != (DType.BOOL, Op.AVERAGE)]

examples = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
sizes = st.integers(1, 8)
seeds = st.integers(0, 2**32 - 1)
shifts = st.integers(0, 9)


def counts(size: int) -> st.SearchStrategy[int]:
    edges = [0, 1, size - 1, size, size + 1, 7, 127, 1009, 16_411, 65_537, 200_003]
    return st.sampled_from(edges) | st.integers(0, 5000)


def encode(values: Array, dtype: DType) -> Array:
    """Values that the type can hold exactly, as numpy stores them."""
    if dtype is DType.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NUMPY[dtype])


def decode(stored: Array, dtype: DType) -> Array:
    if dtype is DType.BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored


def shifted(stored: Array, shift: int) -> Array:
    """A copy at an address that may be no multiple of the item's size."""
    raw = np.empty(stored.nbytes + shift, dtype=np.uint8)
    copy: Array = raw[shift:].view(stored.dtype) if stored.nbytes else raw[:0].view(stored.dtype)
    copy[...] = stored
    return copy


def whole_numbers(rng: np.random.Generator, size: int, count: int, dtype: DType) -> Array:
    """Small enough that every sum and product of 8 of them is exact in every type, whatever the order."""
    low = 0 if dtype in (DType.UINT8, DType.BOOL) else -2
    values = rng.integers(low, 2, (size, count))
    return np.stack([encode(row, dtype) for row in values])


def reduced(inputs: Array, dtype: DType, op: Op) -> Array:
    """What numpy says; integer averages are cut off towards zero."""
    if dtype is DType.BOOL:
        result: Array = inputs.any(0) if op in (Op.SUM, Op.MAX) else inputs.all(0)
        return result
    values = decode(inputs, dtype).astype(np.float64)
    if op is Op.AVERAGE:
        mean = values.sum(0) / len(values)
        return mean if dtype in FLOATS else np.trunc(mean)
    return {
        Op.SUM: values.sum(0),
        Op.PRODUCT: values.prod(0),
        Op.MIN: values.min(0, initial=99),
        Op.MAX: values.max(0, initial=-99),
    }[op]


def check(stored: Array, want: Array, dtype: DType, op: Op) -> None:
    got = decode(stored, dtype)
    if op is Op.AVERAGE and dtype in FLOATS:  # the one division may round
        precision = {DType.FLOAT16: 2e-3, DType.BFLOAT16: 1e-2}.get(dtype, 1e-6)
        np.testing.assert_allclose(got, want, rtol=precision, atol=precision)
    elif dtype in FLOATS:
        np.testing.assert_array_equal(got, want)
    else:  # integers wrap round
        np.testing.assert_array_equal(got, want.astype(np.int64).astype(got.dtype))


def same_bits(results: Sequence[Array]) -> bool:
    return all(result.tobytes() == results[0].tobytes() for result in results)


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS, ids=lambda value: value.name.lower())
@settings(examples, max_examples=12)
@given(data=st.data(), size=sizes, seed=seeds, shift=shifts)
def test_all_reduce(
    rings: Any, *, dtype: DType, op: Op, data: st.DataObject, size: int, seed: int, shift: int
) -> None:
    count = data.draw(counts(size))
    inputs = whole_numbers(np.random.default_rng(seed), size, count, dtype)

    def play(comm: Communicator) -> Array:
        mine = shifted(inputs[comm.rank], shift)
        comm.all_reduce(Buffer.of(mine, dtype), op).wait()
        return mine

    results = rings.together(size, play)
    check(results[0], reduced(inputs, dtype, op), dtype, op)
    assert same_bits(results)


@examples
@given(data=st.data(), size=sizes, seed=seeds, dtype=st.sampled_from(sorted(FLOATS)))
def test_sums_of_real_numbers_are_close_and_the_same_everywhere(
    rings: Any, *, data: st.DataObject, size: int, seed: int, dtype: DType
) -> None:
    count = data.draw(counts(size))
    inputs = np.stack(
        [encode(row, dtype) for row in np.random.default_rng(seed).standard_normal((size, count))]
    )

    def play(comm: Communicator) -> tuple[Array, Array]:
        twice = inputs[comm.rank].copy(), inputs[comm.rank].copy()
        for mine in twice:
            comm.all_reduce(Buffer.of(mine, dtype)).wait()
        return twice

    results = rings.together(size, play)
    assert same_bits([result for twice in results for result in twice])
    values = decode(inputs, dtype).astype(np.float64)
    rounding = {DType.FLOAT64: 2**-52, DType.FLOAT32: 2**-23, DType.FLOAT16: 2**-10, DType.BFLOAT16: 2**-7}
    error = np.abs(decode(results[0][0], dtype) - values.sum(0))
    assert (error <= size * rounding[dtype] * np.abs(values).sum(0)).all()


@examples
@given(
    data=st.data(),
    size=sizes,
    seed=seeds,
    wire=st.sampled_from([DType.FLOAT16, DType.BFLOAT16]),
    shift=shifts,
)
def test_wire_dtype_keeps_its_error_bound_and_the_same_bits(
    rings: Any, *, data: st.DataObject, size: int, seed: int, wire: DType, shift: int
) -> None:
    count = data.draw(counts(size))
    inputs = np.random.default_rng(seed).standard_normal((size, count)).astype(np.float32)

    def play(comm: Communicator) -> Array:
        mine = shifted(inputs[comm.rank], shift)
        comm.all_reduce(Buffer.of(mine), wire_dtype=wire).wait()
        return mine

    results = rings.together(size, play)
    assert same_bits(results)
    values = inputs.astype(np.float64)
    error = np.abs(results[0] - values.sum(0))
    assert (error <= size * 2.0**-8 * np.abs(values).sum(0)).all()


@examples
@given(data=st.data(), size=sizes, seed=seeds, dtype=st.sampled_from(list(DType)), shift=shifts)
def test_data_moves_without_a_look_at_its_type(
    rings: Any, *, data: st.DataObject, size: int, seed: int, dtype: DType, shift: int
) -> None:
    count, root = data.draw(counts(size)), data.draw(st.integers(0, size - 1))
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (size, count * dtype.itemsize), dtype=np.uint8)

    def play(comm: Communicator) -> tuple[Array, Array]:
        mine = shifted(raw[comm.rank], shift)
        gathered = shifted(np.zeros(raw.size, dtype=np.uint8), shift)
        comm.all_gather(Buffer.of(mine, dtype), Buffer.of(gathered, dtype)).wait()
        comm.broadcast(Buffer.of(mine, dtype), root).wait()
        return mine, gathered

    for mine, gathered in rings.together(size, play):
        np.testing.assert_array_equal(mine, raw[root])
        np.testing.assert_array_equal(gathered, raw.ravel())


@examples
@given(data=st.data(), size=sizes, seed=seeds, reduction=st.sampled_from(REDUCTIONS), shift=shifts)
def test_reduce_scatter_keeps_its_source(
    rings: Any, *, data: st.DataObject, size: int, seed: int, reduction: tuple[DType, Op], shift: int
) -> None:
    (dtype, op), count = reduction, min(data.draw(counts(size)), 20_011)
    inputs = whole_numbers(np.random.default_rng(seed), size, size * count, dtype)

    def play(comm: Communicator) -> tuple[Array, Array]:
        source = shifted(inputs[comm.rank], shift)
        part = shifted(np.zeros(count, dtype=source.dtype), shift)
        comm.reduce_scatter(Buffer.of(source, dtype), Buffer.of(part, dtype), op).wait()
        return source, part

    want = reduced(inputs, dtype, op)
    for rank, (source, part) in enumerate(rings.together(size, play)):
        np.testing.assert_array_equal(source, inputs[rank])
        check(part, want[rank * count : (rank + 1) * count], dtype, op)


@examples
@given(data=st.data(), size=sizes, seed=seeds)
def test_all_to_all_with_unequal_parts(rings: Any, *, data: st.DataObject, size: int, seed: int) -> None:
    most = data.draw(st.sampled_from([1, 3, 500, 60_000]))
    parts = np.random.default_rng(seed).integers(0, most + 1, (size, size))

    def piece(source: int, target: int) -> Array:
        return np.arange(parts[source, target], dtype=np.int32) + 1000 * source + target

    def play(comm: Communicator) -> Array:
        outgoing, incoming = parts[comm.rank], parts[:, comm.rank]
        source = np.concatenate([piece(comm.rank, other) for other in range(size)])
        target = np.full(incoming.sum(), -1, dtype=np.int32)
        comm.all_to_all(Buffer.of(source), Buffer.of(target), outgoing.tolist(), incoming.tolist()).wait()
        return target

    for rank, target in enumerate(rings.together(size, play)):
        np.testing.assert_array_equal(target, np.concatenate([piece(s, rank) for s in range(size)]))


@examples
@given(size=sizes, buckets=st.lists(st.integers(0, 40_000), min_size=2, max_size=12))
def test_many_in_flight_keep_their_order(rings: Any, size: int, buckets: list[int]) -> None:
    def play(comm: Communicator) -> list[Array]:
        values = [np.full(count, i + comm.rank, dtype=np.float32) for i, count in enumerate(buckets)]
        works = [
            comm.all_reduce(Buffer.of(v), name=f"bucket {i}")
            if i % 3
            else comm.broadcast(Buffer.of(v), i % size)
            for i, v in enumerate(values)
        ]
        for work in reversed(works):
            work.wait()
            assert work.done()
        return values

    for values in rings.together(size, play):
        for i, value in enumerate(values):
            want = size * i + sum(range(size)) if i % 3 else i + i % size
            np.testing.assert_array_equal(value, np.full_like(value, want))


@examples
@given(data=st.data(), size=st.integers(2, 8), count=st.integers(0, 30_000))
def test_split_groups_work_beside_each_other(
    rings: Any, *, data: st.DataObject, size: int, count: int
) -> None:
    order = data.draw(st.permutations(range(size)))
    cut = data.draw(st.integers(1, size))
    members = [group for group in (order[:cut], order[cut:]) if group]

    def play(comm: Communicator) -> tuple[int, Array]:
        groups = [comm.split(group) for group in members]
        (mine,) = [group for group in groups if group is not None]
        value, everyone = np.full(count, comm.rank), np.full(count, comm.rank)
        works = mine.all_reduce(Buffer.of(value)), comm.all_reduce(Buffer.of(everyone))
        for work in works:
            work.wait()
        np.testing.assert_array_equal(everyone, np.full(count, sum(range(size))))
        gathered = np.empty(mine.size, dtype=np.int64)
        mine.all_gather(Buffer.of(np.array([comm.rank])), Buffer.of(gathered)).wait()
        mine.close()
        return mine.rank, np.concatenate([gathered, value])

    for rank, (group_rank, result) in enumerate(rings.together(size, play)):
        (group,) = [group for group in members if rank in group]
        assert group[group_rank] == rank
        np.testing.assert_array_equal(result[: len(group)], group)
        np.testing.assert_array_equal(result[len(group) :], np.full(count, sum(group)))


@examples
@given(data=st.data(), size=st.integers(2, 8), seed=seeds)
def test_point_to_point_matches_source_and_tag_in_order(
    rings: Any, *, data: st.DataObject, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    most = data.draw(st.sampled_from([1, 1000, 100_000]))
    routes = [rng.choice(size, 2, replace=False).tolist() for _ in range(data.draw(st.integers(1, 12)))]
    sent = [(s, t, int(rng.integers(0, 3)), int(rng.integers(0, most + 1))) for s, t in routes]
    shuffled = rng.permutation(3)

    def play(comm: Communicator) -> None:
        works, expected = [], []
        for i, (source, to, tag, count) in enumerate(sent):
            if source == comm.rank:
                works.append(comm.send(Buffer.of(np.full(count, i)), to, tag))
        for tag in shuffled:
            for i, (source, to, its_tag, count) in enumerate(sent):
                if to == comm.rank and its_tag == tag:
                    expected.append((np.full(count, -1), i))
                    works.append(comm.recv(Buffer.of(expected[-1][0]), source, its_tag))
        for work in works:
            work.wait()
        for got, i in expected:
            np.testing.assert_array_equal(got, np.full_like(got, i))

    rings.together(size, play)


def test_a_barrier_ends_once_all_have_entered(rings: Any) -> None:
    entered: list[int] = []

    def play(comm: Communicator) -> int:
        entered.append(comm.rank)
        comm.barrier().wait()
        return len(entered)

    assert rings.together(5, play) == [5] * 5


@pytest.mark.slow
def test_more_than_two_gibibytes(ring: Callable[..., Any]) -> None:
    count = (1 << 31) + 11

    def play(comm: Communicator) -> None:
        mine = np.full(count, comm.rank + 1, dtype=np.uint8)
        mine[-1] = 100
        comm.all_reduce(Buffer.of(mine)).wait()
        assert mine[-1] == 200
        assert (mine[:-1] == 3).all()

    ring(2).together(play)
