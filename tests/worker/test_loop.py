"""The training loop on one rank and on several."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mlrun.errors import RequestError
from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    LinkEvent,
    LogEvent,
    StateEvent,
    StepEvent,
)
from mlrun.worker import checkpoint
from mlrun.worker.verdict import VerdictError


def test_one_rank_learns_reports_and_says_it_is_done(train, tmp_path):
    (rank,) = train(steps=60, log_every=20, evaluate={"monitor": "loss", "mode": "min"})
    losses = [e.loss for e in rank.said(StepEvent) if e.loss is not None]
    assert len(losses) == 4  # after steps 1, 20, 40 and 60
    assert losses[-1] < losses[0] / 100
    (evaluation,) = rank.said(EvaluationEvent)
    assert evaluation.best
    assert evaluation.metrics["loss"] < 0.01
    done = rank.said(StateEvent)[-1]
    assert done.state == "done"
    assert done.detail == rank.detail
    assert done.detail["reason"] == "complete"
    assert done.detail["step"] == 60
    assert done.detail["samples"] == 60 * 8
    assert done.detail["samples_per_second"] > 0
    assert done.detail["hash"] == rank.backend.state_hash()
    assert done.detail["checkpoint"] == str(checkpoint.latest(tmp_path / "checkpoints"))


def test_steps_samples_and_seconds_of_the_reports_add_up(train):
    (rank,) = train(steps=25, log_every=10)
    events = rank.said(StepEvent)
    assert sum(e.steps for e in events) == 25
    assert sum(e.samples for e in events) == 25 * 8
    for event in events:
        assert math.isclose(event.data_s + event.compute_s + event.comm_s, event.seconds)
    assert [e.epoch for e in events if e.step == 10] == [1]  # 8 steps make an epoch


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_the_same_model_as_one(train, ranks):
    alone = train(1, steps=30)[0]
    together = train(ranks, steps=30)
    assert [r.error for r in together] == [None] * ranks
    assert len({r.detail["hash"] for r in together}) == 1
    assert all(r.detail["hashes_agree"] for r in together)
    assert sum(r.detail["samples"] for r in together) == 30 * 8
    np.testing.assert_allclose(together[0].backend.weights, alone.backend.weights, rtol=1e-9)
    for rank in together:
        assert {e.peer for e in rank.said(LinkEvent)} == set(range(ranks)) - {together.index(rank)}
        assert all(e.bytes_sent > 0 and e.bytes_received > 0 for e in rank.said(LinkEvent))
    assert [e.step for e in together[1].said(EvaluationEvent) + together[1].said(CheckpointEvent)] == []


def test_a_stop_seen_by_one_rank_stops_all_after_the_same_step(train, tmp_path):
    def stop(rank, events):
        return (
            "Ctrl-C" if rank == 1 and any(isinstance(e, StepEvent) and e.step >= 7 for e in events) else None
        )

    ranks = train(3, steps=10_000, log_every=1, stop=stop)
    assert [r.error for r in ranks] == [None] * 3
    assert {r.detail["reason"] for r in ranks} == {"stopped"}
    (last,) = {r.detail["step"] for r in ranks}
    assert 7 < last < 10_000
    assert checkpoint.read(checkpoint.latest(tmp_path / "checkpoints")).step == last


def test_patience_ends_the_training_on_every_rank_alike(train):
    rules = {"every_steps": 5, "monitor": "loss", "mode": "max", "patience": 2}
    ranks = train(2, steps=100, evaluate=rules)
    assert {r.detail["reason"] for r in ranks} == {"early-stop"}
    assert {r.detail["step"] for r in ranks} == {15}  # the first one is the best, then two worse ones


def test_patience_without_its_metric_is_a_wrong_request(train):
    (rank,) = train(steps=5, evaluate={"monitor": "accuracy", "patience": 2})
    assert isinstance(rank.error, RequestError)
    assert "accuracy" in str(rank.error)
    assert "loss" in rank.error.fix


def test_a_monitor_that_no_metric_bears_is_warned_of_once(train):
    (rank,) = train(steps=20, evaluate={"every_steps": 5, "monitor": "acc"})
    (warning,) = (e.text for e in rank.said(LogEvent) if e.level == "warning")
    assert "'acc'" in warning
    assert "loss" in warning
    assert not any(e.best for e in rank.said(EvaluationEvent))


def test_evaluating_without_validation_samples_is_a_wrong_request(train):
    ranks = train(2, evaluate={"every_steps": 5}, data={"args": {"validation": 0}})
    for rank in ranks:
        assert isinstance(rank.error, RequestError)
        assert "data.val_split" in rank.error.fix
        assert rank.said(StepEvent) == []
    assert train(steps=5, data={"args": {"validation": 0}})[0].error is None


def test_a_batch_of_more_than_all_samples_is_warned_of(train):
    (rank,) = train(steps=1, global_batch_size=64)
    assert rank.said(LogEvent) == []
    (rank,) = train(steps=1, global_batch_size=1000)
    (warning,) = (e.text for e in rank.said(LogEvent) if e.level == "warning")
    assert "1000" in warning
    assert "64" in warning


def test_a_replica_that_differs_is_named(train):
    ranks = train(3, steps=20, hash_every=5, data={"args": {"nudge": [7, 2]}})
    for rank in ranks:
        assert isinstance(rank.error, VerdictError)
        assert rank.error.kind == "diverged"
        assert rank.error.culprits == [2]
        assert rank.error.step == 10
        assert "rank 2 (host2) has other parameters" in str(rank.error)


def test_other_data_on_a_rank_is_named_before_the_first_step(train):
    ranks = train(3, data={"args": {"other_data_on": 1}})
    for rank in ranks:
        assert isinstance(rank.error, VerdictError)
        assert rank.error.culprits == [1]
        assert "rank 1 (host1) differs" in str(rank.error)
        assert rank.said(StepEvent) == []


def test_a_nonfinite_step_names_step_and_rank_and_keeps_the_checkpoint_before_it(train, tmp_path):
    ranks = train(2, steps=50, checkpoint={"every_steps": 10}, data={"args": {"nan_at": [30, 1]}})
    for rank in ranks:
        assert isinstance(rank.error, VerdictError)
        assert (rank.error.kind, rank.error.step, rank.error.culprits) == ("nonfinite", 30, [1])
        assert "step 30" in str(rank.error)
        assert "loss on rank 1 (host1)" in str(rank.error)
    assert checkpoint.read(checkpoint.latest(tmp_path / "checkpoints")).step == 30


def test_skip_leaves_the_bad_step_out_and_warns(train):
    ranks = train(2, steps=20, on_nonfinite="skip", data={"args": {"nan_at": [5, 1]}})
    assert [r.error for r in ranks] == [None] * 2
    assert {r.detail["skipped_steps"] for r in ranks} == {1}
    assert [e.text for e in ranks[0].said(LogEvent) if e.level == "warning" and "step 5 " in e.text]


def test_a_loss_that_is_not_finite_is_unknown_and_warned_of(train):
    (rank,) = train(steps=6, on_nonfinite="ignore", log_every=1, data={"args": {"nan_at": [3, 0]}})
    assert [e.loss is None for e in rank.said(StepEvent)] == [False] * 3 + [True] * 3
    assert any("nan" in e.text for e in rank.said(LogEvent))


def test_the_timeline_holds_the_first_steps_of_every_rank(train, trace, tmp_path: Path):
    train(2, steps=30)
    for rank in range(2):
        spans = [e for e in trace(tmp_path / f"timeline-rank-{rank}.json") if e["ph"] == "X"]
        assert {e["pid"] for e in spans} == {rank}
        assert {e["args"]["step"] for e in spans} == set(range(20))
        for step in range(20):
            backward, reduce = (e for e in spans if e["args"]["step"] == step)
            assert backward["name"] == "backward"
            assert reduce["name"] == "all_reduce:0"
            assert backward["ts"] <= reduce["ts"]
            assert backward["tid"] != reduce["tid"]
