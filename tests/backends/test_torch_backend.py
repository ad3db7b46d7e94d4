"""TorchBackend on one rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mlrun.backends.torch.backend import TorchBackend
from mlrun.backends.torch.models import Sizes, make_model
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

DIGITS: dict[str, Any] = {
    "name": "digits",
    "model": {"name": "resnet8", "args": {"width": 8}},
    "data": {"source": "digits"},
    "batch_size": 64,
    "epochs": 2,
    "optimizer": {"lr": 0.05},
    "device": "cpu",
    "threads": 1,
}


def build(**changes: Any) -> TorchBackend:
    backend = TorchBackend()
    backend.build(JobSpec.model_validate({**DIGITS, **changes}), None, 0)
    return backend


def test_a_step_equals_plain_pytorch() -> None:
    """The same model and batch through torch's own SGD gives the same parameters."""
    backend = build(grad_accumulation=2, batch_size=32)
    plain = make_model(backend._spec, Sizes((1, 8, 8), 10))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for batch in backend._feed.again(step):
            (torch.nn.functional.cross_entropy(plain(batch.inputs), batch.targets) / 2).backward()
        optimizer.step()
        backend.step(step)
    for ours, theirs in zip(backend._model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resuming_goes_on_to_the_same_bits(tmp_path: Path, optimizer: str, precision: str) -> None:
    changes = {
        "optimizer": {"name": optimizer, "lr": 0.001},
        "precision": precision,
        "lr_schedule": {"name": "cosine", "warmup_steps": 3},
        "model": {"name": "mlp", "args": {"dropout": 0.2}},
    }
    whole = build(**changes)
    for step in range(6):
        if step == 3:
            whole.save(tmp_path)
        whole.step(step)
    resumed = build(**changes)
    resumed.load(tmp_path)
    for step in range(3, 6):
        resumed.step(step)
    assert resumed.state_hash() == whole.state_hash()
    assert resumed.loss() == whole.loss()


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    build().save(tmp_path)
    with pytest.raises(RequestError, match="another model"):
        build(model={"name": "resnet8", "args": {"width": 16}}).load(tmp_path)
    with pytest.raises(RequestError, match="SGD"):
        build(optimizer={"name": "adamw"}).load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(RequestError, match="can't be read"):
        build().load(tmp_path)


@pytest.mark.parametrize(("policy", "applied"), [("stop", False), ("skip", False), ("ignore", True)])
def test_a_gradient_that_isnt_finite_is_applied_only_when_told_so(policy: str, applied: bool) -> None:
    backend = build(on_nonfinite=policy, model={"name": "mlp"})
    before = backend.state_hash()
    backend._source.train.inputs[backend._sampler.batch(0)[5]] = float("nan")  # type: ignore[attr-defined]
    backend.step(0)
    assert backend.applied() is applied
    assert (backend.state_hash() == before) is not applied
    if not applied:
        assert backend.nonfinite() == "loss"
        backend.step(1)
        assert backend.applied()
        assert backend.nonfinite() is None


def test_skipping_keeps_nan_out_of_batchnorm() -> None:
    backend = build(on_nonfinite="skip")
    backend._source.train.inputs[backend._sampler.batch(1)[5]] = float("nan")  # type: ignore[attr-defined]
    for step in range(3):
        backend.step(step)
    assert all(b.isfinite().all() for b in backend._model.buffers() if b.is_floating_point())


def test_learning_rate_follows_the_schedule() -> None:
    backend = build(
        lr_schedule={"name": "step", "warmup_steps": 4, "step_epochs": [1], "gamma": 0.1},
        optimizer={"lr": 0.4},
    )
    rates = [backend._rate.at(step) for step in (0, 3, 22, 23)]
    assert rates == pytest.approx([0.1, 0.4, 0.4, 0.04])
    cosine = build(lr_schedule={"name": "cosine", "min_lr": 0.01}, optimizer={"lr": 0.1})
    assert cosine._rate.at(0) == pytest.approx(0.1)
    assert cosine._rate.at(46) == pytest.approx(0.01)


def test_regression_and_text_train_too() -> None:
    regression = build(
        task="regression", model={"name": "mlp"}, data={"source": "synthetic"}, optimizer={"lr": 0.01}
    )
    first = [regression.step(0), regression.loss()][1]
    for step in range(1, 20):
        regression.step(step)
    assert regression.loss() < first / 2
    assert regression.evaluate().metrics.keys() == {"loss", "mae"}
    text = build(
        task="text-classification",
        model={"name": "distilbert", "args": {"dim": 32, "n_heads": 2, "n_layers": 1, "hidden_dim": 64}},
        data={"source": "synthetic", "sequence_length": 8},
        batch_size=4,
    )
    assert text.step(0).samples == 4
    assert text.unit == "sequences"


def test_a_task_and_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def model(size):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, 10))\n"
        "def loss(outputs, targets):\n    return torch.nn.functional.cross_entropy(outputs, targets)\n"
        "def wrong(outputs, targets):\n    return (outputs.argmax(1) != targets).sum()\n"
    )
    own = build(
        task={"loss": "own:loss", "metrics": {"error": "own:wrong"}, "unit": "digits"},
        model={"name": "own:model", "args": {"size": 64}},
        workdir=str(tmp_path),
    )
    own.step(0)
    assert own.unit == "digits"
    assert 0 < own.evaluate().metrics["error"] <= 1


OWN = """\
import torch
from torch.utils.data import TensorDataset

def model():
    return torch.nn.Linear(8, 1)

class Ragged:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.zeros(index + 1), 0

def data(kind):
    inputs = torch.arange(128.0).reshape(16, 8)
    whole = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return {"whole": whole, "numbers": list(range(16)), "triples": [(1, 2, 3)] * 16, "ragged": Ragged()}[kind]

def per_sample(outputs, targets):
    return (outputs - targets) ** 2

def mean(outputs, targets):
    return per_sample(outputs, targets).mean()

def number(outputs, targets):
    return per_sample(outputs, targets).sum().item()
"""


@pytest.mark.parametrize(
    ("loss", "metric", "data", "words"),
    [
        ("per_sample", "number", "whole", "task.loss: own_parts:per_sample gave shape (8, 1)"),
        ("number", "number", "whole", "task.loss: own_parts:number gave float"),
        ("mean", "per_sample", "whole", "task.metrics.far: own_parts:per_sample gave shape (8, 1)"),
        ("mean", "number", "numbers", "a sample is of type int"),
        ("mean", "number", "triples", "a sample is a tuple of 3"),
        ("mean", "number", "ragged", "samples don't make a batch"),
        ("mean", "number", "whole", None),
    ],
)
def test_parts_of_ones_own_that_do_not_fit_are_named(
    tmp_path: Path, loss: str, metric: str, data: str, words: str | None
) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)

    def train() -> float:
        own = build(
            task={"loss": f"own_parts:{loss}", "metrics": {"far": f"own_parts:{metric}"}},
            model={"name": "own_parts:model"},
            data={"source": "own_parts:data", "args": {"kind": data}, "val_split": 0.5, "workers": 0},
            batch_size=8,
            optimizer={"lr": 1e-9},
            workdir=str(tmp_path),
        )
        own.step(0)
        return own.evaluate().metrics["far"]

    if words is None:
        assert train() > 0
    else:
        with pytest.raises(RequestError, match=re.escape(words)):
            train()


def test_wrong_names_are_told_with_what_is_near() -> None:
    with pytest.raises(RequestError, match="did you mean resnet8"):
        build(model={"name": "resnet9"})
    with pytest.raises(RequestError, match="depth"):
        build(model={"name": "mlp", "args": {"depth": 3}})
    with pytest.raises(RequestError, match="no module 'nowhere'"):
        build(model={"name": "nowhere:model"})


def test_resnet50_has_the_published_size() -> None:
    sizes = Sizes((3, 224, 224), 1000)
    model = make_model(JobSpec.model_validate({**DIGITS, "model": {"name": "resnet50"}}), sizes)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
