"""The predictor against arithmetic that can be done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlrun.backends.sim.profiles import Bucket
from mlrun.scaletest.model import HANDLING_S, Link, Setting, all_reduce_s, buckets_of, predict

MEGABYTE = 1_000_000
LINK = Link(bytes_per_s=100 * MEGABYTE)
EARLY_AND_LAST = (Bucket(10 * MEGABYTE // 4, 0.5), Bucket(10 * MEGABYTE // 4, 1.0))


def test_an_all_reduce_takes_what_the_ring_sends() -> None:
    assert all_reduce_s(100 * MEGABYTE, 1, LINK) == 0
    assert all_reduce_s(100 * MEGABYTE, 2, LINK) == pytest.approx(1 + 3 * HANDLING_S)
    assert all_reduce_s(100 * MEGABYTE, 4, LINK) == pytest.approx(0.75 + 8 * HANDLING_S)


def test_only_what_follows_the_backward_pass_is_exposed() -> None:
    setting = Setting((3.0, 3.0), EARLY_AND_LAST, LINK)
    assert predict(setting).exposed_s == pytest.approx(0.1 + 3 * HANDLING_S)
    assert predict(replace(setting, overlap=False)).exposed_s == pytest.approx(2 * (0.1 + 3 * HANDLING_S))
    assert predict(replace(setting, wire_bytes=2)).exposed_s == pytest.approx(0.05 + 3 * HANDLING_S)


def test_buckets_queue_behind_a_slow_link() -> None:
    setting = Setting((0.3, 0.3), EARLY_AND_LAST, Link(10 * MEGABYTE))
    ready = 0.3 * (1 / 3 + 2 / 3 * 0.5)
    assert predict(setting).step_s == pytest.approx(ready + 2 * (1 + 3 * HANDLING_S))


def test_the_slowest_rank_sets_the_pace() -> None:
    assert predict(Setting((1.0, 2.0, 1.0), EARLY_AND_LAST, LINK)).compute_s == 2.0


def test_a_model_of_unknown_layers_has_equal_buckets() -> None:
    buckets = buckets_of("mlp", 4 * MEGABYTE, 4.0)
    assert len(buckets) == 4
    assert [bucket.ready for bucket in buckets] == [0.25, 0.5, 0.75, 1.0]
    assert sum(bucket.elements for bucket in buckets) == 4 * MEGABYTE
