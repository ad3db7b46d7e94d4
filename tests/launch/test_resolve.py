"""What is asked for becomes ranks, hosts and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlrun.errors import RefusedError, RequestError
from mlrun.launch.resolve import for_host, resolve
from mlrun.spec import JobSpec, batch_shares, own_share


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "job", "model": {"name": "mlp"}, "batch_size": 64, "steps": 1, **keys}
    )


def test_one_worker_here_by_default() -> None:
    resolved = resolve(job(), None)
    assert [(a.rank, a.world_size, a.host) for a in resolved.assignments] == [(0, 1, "localhost")]
    assert resolved.notes == []


def test_the_resolved_spec_starts_the_same_run_again() -> None:
    once = resolve(job(), 3)
    assert once.spec.hosts == ["localhost:3"]
    assert resolve(once.spec, None).assignments == once.assignments
    assert once.spec.workdir == str(Path.cwd())


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({}, "global batch 64 → 256, lr unchanged 0.1"),
        ({"lr_scale": "linear"}, "global batch 64 → 256, lr 0.1 → 0.4 (linear)"),
        ({"lr_scale": "sqrt"}, "global batch 64 → 256, lr 0.1 → 0.2 (sqrt)"),
        ({"grad_accumulation": 2}, "global batch 128 → 512, lr unchanged 0.1"),
        ({"batch_size": None, "global_batch_size": 64}, "global batch 64: 16 per worker, lr unchanged 0.1"),
        (
            {"batch_size": None, "global_batch_size": 66},
            "global batch 66: 16 to 17 per worker, lr unchanged 0.1",
        ),
    ],
)
def test_the_screen_says_what_the_global_batch_became(keys: dict[str, Any], note: str) -> None:
    assert resolve(job(**keys), 4).notes == [note]


def test_shares_are_as_equal_as_possible_and_complete() -> None:
    spec = job(batch_size=None, global_batch_size=10)
    assert batch_shares(spec, 4) == [3, 3, 2, 2]
    with pytest.raises(RequestError, match="global_batch_size 10 is less than one sample per worker"):
        resolve(spec, 11)


def test_a_host_may_take_smaller_batches_than_the_others() -> None:
    hosts = ["mac1", {"name": "mac2", "batch_size": 16, "slots": 2}]
    resolved = resolve(job(hosts=hosts, lr_scale="linear"), None)
    assert resolved.shares == [64, 16, 16]
    assert resolved.notes == ["global batch 64 → 96, lr 0.1 → 0.15 (linear)"]
    facts = {"cores": 8, "virtual_machine": None}
    got = [for_host(resolved.spec, host, host.slots, facts, smoke=False)[0] for host in resolved.hosts]
    assert [own_share(spec) for spec in got] == [64, 16]


def test_wrong_requests_are_sentences() -> None:
    with pytest.raises(RequestError, match="-np 0"):
        resolve(job(), 0)
    with pytest.raises(RequestError, match="no folder /nowhere"):
        resolve(job(workdir="/nowhere"), None)
    with pytest.raises(RefusedError, match="mpi works within one host"):
        resolve(job(hosts=["mac1", "mac2"], allreduce={"engine": "mpi"}), None)


def test_hosts_keep_what_was_said_of_them() -> None:
    mac2 = {"name": "mac2", "python": "/opt/py/bin/python", "env": {"KEY": None}, "slots": 4}
    resolved = resolve(job(hosts=["anna@mac1:2", mac2, "mac3"]), 3)
    assert [(a.rank, a.host, a.local_rank) for a in resolved.assignments] == [
        (0, "mac1", 0),
        (1, "mac1", 1),
        (2, "mac2", 0),
    ]
    mac1, second = resolved.hosts
    assert (mac1.user, mac1.slots) == ("anna", 2)
    assert (second.python, second.env, second.slots) == ("/opt/py/bin/python", {"KEY": None}, 1)
    assert resolve(resolved.spec, None).hosts == resolved.hosts


def test_smoke_stays_on_this_machine_and_off_an_advertised_gpu() -> None:
    resolved = resolve(job(hosts=["mac1", "mac2"]), None, smoke=True)
    assert [a.host for a in resolved.assignments] == ["localhost"]
    spec, notes = for_host(
        resolved.spec, resolved.hosts[0], 2, {"cores": 8, "virtual_machine": True}, smoke=True
    )
    assert (spec.device, spec.threads) == ("cpu", 4)
    assert len(notes) == 1
    assert (
        for_host(resolved.spec, resolved.hosts[0], 16, {"cores": 8, "virtual_machine": None}, smoke=True)[
            0
        ].threads
        == 1
    )
