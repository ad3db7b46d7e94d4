"""Checkpoints: cadence, keeping, resuming, and what a kill in mid-save leaves."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlrun.errors import RequestError, RunFailedError
from mlrun.protocol import (
    CheckpointEvent,
    EvaluationEvent,
    LogEvent,
    StateEvent,
)
from mlrun.worker import checkpoint


def steps_on_disk(run_dir: Path) -> list[int]:
    return [checkpoint.read(p).step for p in checkpoint.all_of(run_dir / "checkpoints")]


def test_the_last_k_are_kept(train, tmp_path):
    (rank,) = train(steps=23, checkpoint={"every_steps": 5, "keep": 2})
    assert [e.step for e in rank.said(CheckpointEvent)] == [5, 10, 15, 20, 23]
    assert steps_on_disk(tmp_path) == [20, 23]
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"step-00000020", "step-00000023"}


def test_epochs_are_a_cadence(train):
    (rank,) = train(epochs=4, checkpoint={"every_epochs": 2})
    assert [e.step for e in rank.said(CheckpointEvent)] == [16, 32]


def test_minutes_are_a_cadence_that_rank_0_decides(train):
    ranks = train(2, steps=5, checkpoint={"every_minutes": 1e-9})
    assert [r.error for r in ranks] == [None] * 2
    assert [e.step for e in ranks[0].said(CheckpointEvent)] == [1, 2, 3, 4, 5]
    assert ranks[1].said(CheckpointEvent) == []


def test_the_best_one_outlives_the_last_k(train, tmp_path):
    (rank,) = train(
        steps=30,
        checkpoint={"every_steps": 5, "keep": 1},
        evaluate={"every_steps": 5, "monitor": "loss", "mode": "max"},
    )
    assert [e.step for e in rank.said(EvaluationEvent) if e.best] == [5]
    assert steps_on_disk(tmp_path) == [5, 30]
    assert checkpoint.read(tmp_path / "checkpoints" / "best").step == 5


def test_going_back_to_an_early_checkpoint_saves_beside_the_later_ones(train, tmp_path):
    train(steps=20, checkpoint={"every_steps": 5, "keep": 4})
    rules = {"every_steps": 1, "keep": 2}
    train(steps=8, checkpoint=rules, resume_from=tmp_path / "checkpoints" / "step-00000005")
    assert steps_on_disk(tmp_path) == [7, 8, 10, 15, 20]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_on_every_rank(train, tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    ranks = train(2, steps=5)
    assert isinstance(ranks[0].error, RunFailedError)
    assert "the checkpoint of step 5 can't be written" in str(ranks[0].error)
    assert "the checkpoint of step 5 can't be written" in str(ranks[1].error)


def test_a_full_disk_is_a_sentence(train, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # no file may be larger
    try:
        (rank,) = train(steps=5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(rank.error, RunFailedError)
    assert "the checkpoint of step 5 can't be written" in str(rank.error)
    assert "File too large" in str(rank.error)


def test_the_state_says_where_the_training_stood(train, tmp_path):
    train(steps=11, seed=3, evaluate={"every_steps": 11, "monitor": "loss", "mode": "min"})
    state = checkpoint.read(checkpoint.latest(tmp_path / "checkpoints"))
    assert (state.step, state.epoch, state.position) == (11, 1, 3)
    assert (state.seed, state.world_size, state.global_batch_size) == (3, 1, 8)
    assert state.metrics["loss"] == state.best


def test_after_an_epochs_last_step_the_next_epoch_begins(train, tmp_path):
    train(epochs=1)
    state = checkpoint.read(checkpoint.latest(tmp_path / "checkpoints"))
    assert (state.step, state.epoch, state.position) == (8, 1, 0)
    (rank,) = train(epochs=2, resume_from=checkpoint.latest(tmp_path / "checkpoints"))
    assert "epoch 2, 0 steps into it" in rank.said(LogEvent)[0].text


@pytest.mark.parametrize("ranks", [1, 2])
def test_resuming_gives_the_bits_of_an_unbroken_run(train, tmp_path, ranks):
    unbroken = train(ranks, steps=30)[0].detail["hash"]
    train(ranks, steps=13)
    resumed = train(ranks, steps=30, resume_from=tmp_path / "checkpoints" / "step-00000013")
    assert [r.error for r in resumed] == [None] * ranks
    assert {r.detail["hash"] for r in resumed} == {unbroken}
    (said,) = [e for e in resumed[0].said(StateEvent) if e.state == "resumed"]
    assert said.detail["step"] == 13
    assert said.detail["hash"] == said.detail["saved_hash"]


def test_resuming_a_finished_run_does_nothing_but_say_so(train, tmp_path):
    first = train(steps=10)[0].detail
    (rank,) = train(steps=10, resume_from=tmp_path / "checkpoints" / "step-00000010")
    assert rank.said(CheckpointEvent) == []
    assert (rank.detail["step"], rank.detail["hash"]) == (10, first["hash"])


def test_the_best_so_far_is_remembered_across_a_resume(train, tmp_path):
    rules = {"every_steps": 5, "monitor": "loss", "mode": "max", "patience": 3}
    train(steps=10, evaluate=rules)
    (rank,) = train(steps=100, evaluate=rules, resume_from=tmp_path / "checkpoints" / "step-00000010")
    assert (rank.detail["reason"], rank.detail["step"]) == ("early-stop", 20)


@pytest.mark.parametrize(
    ("change", "what"),
    [({"model": {"name": "other"}}, "model"), ({"data": {"args": {"other_data_on": 0}}}, "data")],
)
def test_another_model_or_other_data_is_refused(train, tmp_path, change, what):
    train(steps=5)
    (rank,) = train(steps=10, resume_from=tmp_path / "checkpoints" / "step-00000005", **change)
    assert isinstance(rank.error, RequestError)
    assert f"the {what} changed" in str(rank.error)


def test_another_world_size_and_batch_are_stated(train, tmp_path):
    train(1, steps=5)
    ranks = train(2, steps=10, global_batch_size=16, resume_from=tmp_path / "checkpoints" / "step-00000005")
    assert [r.error for r in ranks] == [None] * 2
    text = "\n".join(e.text for e in ranks[0].said(LogEvent))
    assert "world size 1 → 2" in text
    assert "global batch 8 → 16" in text


def test_a_damaged_checkpoint_is_refused(train, tmp_path):
    train(steps=5)
    folder = tmp_path / "checkpoints" / "step-00000005"
    weights = folder / "weights.npy"
    content = bytearray(weights.read_bytes())
    content[-60] ^= 1
    weights.write_bytes(content)
    (rank,) = train(steps=10, resume_from=folder)
    assert isinstance(rank.error, RequestError)
    assert "doesn't hold what was saved" in str(rank.error)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe"])
def test_a_broken_state_file_is_one_sentence(tmp_path, content):
    (tmp_path / checkpoint.STATE_FILE).write_bytes(content)
    with pytest.raises(RequestError):
        checkpoint.read(tmp_path)


SAVE_AND_HANG = """
import dataclasses, json, sys, time
from pathlib import Path
from mlrun.worker import checkpoint

root, previous = Path(sys.argv[1]), Path(sys.argv[2])

def save(folder):
    (folder / "weights.npy").write_bytes(b"half")
    print("saving", flush=True)
    time.sleep(60)

checkpoint.write(root, dataclasses.replace(checkpoint.read(previous), step=6), save)
"""


def test_a_kill_in_mid_save_leaves_the_previous_one_and_no_half_one(train, tmp_path):
    train(steps=5)
    root = tmp_path / "checkpoints"
    previous = checkpoint.latest(root)
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVE_AND_HANG, str(root), str(previous)], stdout=subprocess.PIPE
    )
    assert saver.stdout is not None
    assert saver.stdout.readline() == b"saving\n"
    os.kill(saver.pid, signal.SIGKILL)
    saver.communicate()
    assert checkpoint.latest(root) == previous
    (rank,) = train(steps=10, resume_from=previous)
    assert rank.error is None
    assert steps_on_disk(tmp_path) == [5, 10]
    assert len(list(root.iterdir())) == 2  # the half-written folder is gone


def test_saving_a_step_again_replaces_it(train, tmp_path):
    train(steps=5)
    root = tmp_path / "checkpoints"
    state = checkpoint.read(checkpoint.latest(root))
    folder = checkpoint.write(root, state, lambda f: (f / "other").write_text("new") and None)
    assert {p.name for p in folder.iterdir()} == {"other", "state.json"}
    assert json.loads((folder / "state.json").read_text())["step"] == 5
