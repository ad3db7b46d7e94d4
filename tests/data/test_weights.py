"""Starting from weights, freezing, and what of the parameters decays."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mlrun import runs, specfile, starters
from mlrun.backends.torch.backend import TorchBackend
from mlrun.data.folder import LocalFolder
from mlrun.data.text import read_rows
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

SMALL = {"n_layers": 1, "dim": 32, "n_heads": 2, "hidden_dim": 64, "vocab_size": 600}
KINDS = {"sea": 0, "wood": 1, "town": 2, "field": 3}


def reviews(path: Path, rows: int, seed: int) -> Path:
    """Each text has words of one kind among words of none; the label is the kind's number."""
    drawn = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        kind, label = drawn.choice(list(KINDS.items()))
        words = [f"{kind}{drawn.randrange(60)}" for _ in range(3)]
        words += [f"the{drawn.randrange(200)}" for _ in range(5)]
        drawn.shuffle(words)
        lines.append(f"{' '.join(words)},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def build(
    path: Path, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **changes: Any
) -> TorchBackend:
    spec = {
        "name": "reviews",
        "task": "text-classification",
        "model": {"name": "distilbert", "args": SMALL, **(model or {})},
        "data": {"source": "csv", "path": str(path), "sequence_length": 12, "val_split": 0.5, **(data or {})},
        "batch_size": 32,
        "steps": 60,
        "optimizer": {"name": "adamw", "lr": 0.003},
        "device": "cpu",
        "threads": 1,
        **changes,
    }
    backend = TorchBackend()
    backend.build(JobSpec.model_validate(spec), None, 0)
    return backend


def accuracy(backend: TorchBackend, steps: int) -> float:
    for step in range(steps):
        backend.step(step)
    return backend.evaluate().metrics["accuracy"]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a training on many texts."""
    folder = tmp_path_factory.mktemp("former")
    backend = build(reviews(folder / "many.csv", 3000, seed=1))
    assert accuracy(backend, 60) > 0.8
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    backend.save(checkpoint)
    return checkpoint


def test_fine_tuning_beats_training_from_scratch_at_the_same_steps(tmp_path: Path, former: Path) -> None:
    few = reviews(tmp_path / "few.csv", 200, seed=2)
    data = {"tokenizer": str(former)}

    scratch = accuracy(build(few, data=data), 6)
    tuned = accuracy(build(few, {"weights": str(former), "fresh": ["classifier.*"]}, data), 6)
    assert tuned > scratch + 0.2


def test_tensors_that_do_not_fit_are_all_named(tmp_path: Path, former: Path) -> None:
    path = reviews(tmp_path / "few.csv", 50, seed=2)
    with pytest.raises(RequestError) as failure:
        build(path, {"weights": str(former)}, {"classes": 7})
    assert "model.classifier.weight is (4, 32), not (7, 32)" in failure.value.message
    assert "model.classifier.bias" in failure.value.message
    assert "2 of" in failure.value.message
    build(path, {"weights": str(former), "fresh": ["classifier.*"]}, {"classes": 7})


def test_frozen_parameters_stay_and_the_rest_learns(tmp_path: Path) -> None:
    backend = build(reviews(tmp_path / "few.csv", 100, seed=2), {"freeze": ["*embeddings*"]})
    before = {name: p.clone() for name, p in backend._model.named_parameters()}
    accuracy(backend, 2)
    for name, parameter in backend._model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("embeddings" in name), name


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"freeze": ["embedings"]}, "matches no parameter"),
        ({"freeze": ["*"]}, "no parameter is left"),
        ({"weights": "nowhere.safetensors"}, "can't be read"),
    ],
)
def test_what_does_not_fit_the_model_is_a_sentence(tmp_path: Path, model: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        build(reviews(tmp_path / "few.csv", 20, seed=2), model)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_clipping_and_groups_equal_plain_pytorch(tmp_path: Path, name: str) -> None:
    settings = {"name": name, "lr": 0.01, "weight_decay": 0.1, "no_decay": ["bias"], "clip_norm": 0.05}
    args = {**SMALL, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    backend = build(reviews(tmp_path / "few.csv", 100, seed=2), {"args": args}, optimizer=settings)
    plain = build(tmp_path / "few.csv", {"args": args})._model
    named = dict(plain.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if not n.endswith("bias")], "weight_decay": 0.1},
        {"params": [p for n, p in named.items() if n.endswith("bias")], "weight_decay": 0.0},
    ]
    optimizer = (
        torch.optim.SGD(groups, lr=0.01, momentum=0.9)
        if name == "sgd"
        else torch.optim.AdamW(groups, lr=0.01)
    )
    for step in range(3):
        optimizer.zero_grad()
        (batch,) = backend._feed.again(step)
        torch.nn.functional.cross_entropy(plain(**batch.inputs), batch.targets).backward()
        assert torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05) > 0.05
        optimizer.step()
        backend.step(step)
    for ours, theirs in zip(backend._model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_other_groups_is_refused(tmp_path: Path, former: Path) -> None:
    optimizer = {"name": "adamw", "weight_decay": 0.1, "no_decay": ["bias"]}
    backend = build(reviews(tmp_path / "few.csv", 50, seed=2), optimizer=optimizer)
    with pytest.raises(RequestError, match="other parameters trained"):
        backend.load(former)


def test_the_shipped_spec_trains_on_a_csv_and_goes_on_from_a_run(tmp_path: Path) -> None:
    reviews(tmp_path / "reviews.csv", 60, seed=3)
    spec = starters.folder() / "distilbert-csv.yaml"

    def launch(*sets: str) -> Path:
        options = [f"--set={each}" for each in ("device=cpu", "threads=1", *sets)]
        command = [sys.executable, "-m", "mlrun.cli", "launch", str(spec), "--smoke", "-np", "2"]
        done = subprocess.run(
            [*command, "--console=plain", "--runs-dir=runs", *options],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return runs.all_runs(tmp_path / "runs")[0]

    first = launch()
    checkpoint = runs.latest_checkpoint(first)
    assert checkpoint is not None
    second = launch(f"model.weights={first}", f"data.tokenizer={checkpoint}")
    assert runs.read_summary(second)["status"] == "done"

    exported = tmp_path / "exported"
    command = [sys.executable, "-m", "mlrun.cli", "export", str(second), "--format=hf", f"--out={exported}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'DistilBertForSequenceClassification.from_pretrained("{exported}")' in done.stdout
    _same_logits(second, exported, tmp_path)


def _same_logits(run: Path, exported: Path, workdir: Path) -> None:
    """The exported folder alone, from text to logits, against the run's own checkpoint and data."""
    spec = specfile.load(run / runs.SPEC_FILE).model_copy(update={"workdir": str(workdir)})
    checkpoint = runs.latest_checkpoint(run)
    assert checkpoint is not None
    backend = TorchBackend()
    backend.build(spec, None, 0)
    backend.load(checkpoint)
    texts = [row.text for row in read_rows(LocalFolder(workdir, "csv"), "reviews.csv", spec.data)]
    kept = backend._source.train.fetch(np.arange(len(backend._source.train)), 0).inputs
    tokens = AutoTokenizer.from_pretrained(exported)(
        texts, padding="max_length", truncation=True, max_length=16, return_tensors="pt"
    )
    model = AutoModelForSequenceClassification.from_pretrained(exported).eval()
    with torch.no_grad():
        theirs = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
        ours = backend._model.eval()(**kept)
    rows = {tuple(ids.tolist()): logits for ids, logits in zip(tokens["input_ids"], theirs, strict=True)}
    for ids, logits in zip(kept["input_ids"], ours, strict=True):
        torch.testing.assert_close(rows[tuple(ids.tolist())], logits, rtol=0, atol=1e-6)
