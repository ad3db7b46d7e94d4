"""What is run for which request."""

from __future__ import annotations

from typing import Any

import pytest

from mlrun.errors import RequestError
from mlrun.scaletest.plan import STEPS, cases, counts_up_to, with_one
from mlrun.spec import JobSpec


def spec(**keys: Any) -> JobSpec:
    size = {} if "global_batch_size" in keys else {"batch_size": 32}
    length = {} if "epochs" in keys else {"steps": 10}
    base = {"name": "job", "framework": "sim", "model": {"name": "resnet50"}}
    return JobSpec.model_validate({**base, **size, **length, **keys})


def test_counts_are_powers_of_two_and_all_workers_there_are() -> None:
    assert counts_up_to(1) == [1]
    assert counts_up_to(6) == [1, 2, 4, 6]
    assert counts_up_to(8) == [1, 2, 4, 8]
    assert with_one([4, 2]) == [1, 2, 4]


def test_a_worker_keeps_its_batch_or_all_share_one() -> None:
    weak = cases([spec()], [1, 2], [], "batch")
    assert [case.spec.batch_size for case in weak] == [32, 32]
    strong = cases([spec(global_batch_size=64)], [1, 2], [], "global")
    assert [(case.spec.batch_size, case.spec.global_batch_size) for case in strong] == [(None, 64)] * 2


def test_nothing_comes_between_the_measured_steps() -> None:
    (case,) = cases([spec(epochs=90, evaluate={"every_epochs": 1})], [1], [], "batch")
    assert (case.spec.steps, case.spec.epochs, case.spec.evaluate) == (STEPS, None, None)


def test_each_spec_and_batch_size_is_a_series() -> None:
    found = cases([spec(), spec(name="other")], [1, 4], [16, 64], "batch")
    assert len(found) == 8
    assert list(dict.fromkeys(case.series for case in found)) == [
        "job, batch 16",
        "job, batch 64",
        "other, batch 16",
        "other, batch 64",
    ]


def test_each_count_takes_the_speeds_of_its_workers() -> None:
    unequal = spec(sim={"samples_per_second": [4.0, 3.0, 2.0]})
    found = cases([unequal], [1, 3], [], "batch")
    assert [case.spec.sim.samples_per_second for case in found] == [[4.0], [4.0, 3.0, 2.0]]
    with pytest.raises(RequestError, match="3 speeds, and 4 workers"):
        cases([unequal], [4], [], "batch")


def test_two_series_need_two_names() -> None:
    with pytest.raises(RequestError, match="the same name"):
        cases([spec(), spec()], [1], [], "batch")
