"""Specs with ``framework: tensorflow``, through the command line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import Mlrun

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)

CONFIGS = Path(__file__).parents[2] / "configs"


def test_two_workers_learn_digits_and_agree(mlrun: Mlrun) -> None:
    run = mlrun("launch", str(CONFIGS / "keras-digits.yaml"), "-np", "2")
    assert run.finish() == 0
    assert run.summary["metrics"]["accuracy"] >= 0.97
    assert run.summary["hashes_agree"] is True
    assert run.summary["versions"]["tensorflow"]
    names = {event["name"] for event in _trace(run.folder)}
    assert {"data", "forward", "backward", "wait", "optimizer", "all_reduce:0"} <= names
    assert _exported_model_of(run.folder) == ["Functional", "(None, 10)"]


def _trace(folder: Path) -> list[dict[str, object]]:
    events: list[dict[str, object]] = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    return events


def _exported_model_of(folder: Path) -> list[str]:
    """Class and output shape of the run's model, as Keras reads it where there is no mlrun."""
    command = [sys.executable, "-m", "mlrun.cli", "export", str(folder), "--format=keras", f"--out={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    code = (
        "import sys; sys.modules['mlrun'] = None; import keras; "
        f"model = keras.models.load_model({str(folder / 'model.keras')!r}); "
        "print(type(model).__name__, model.output_shape, sep='\\n')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return loaded.stdout.splitlines()


@pytest.fixture
def dropout(tmp_path: Path) -> str:
    path = tmp_path / "dropout.yaml"
    path.write_text(
        "name: dropout\nframework: tensorflow\nmodel: {name: mlp, args: {dropout: 0.5}}\n"
        "data: {source: digits}\nglobal_batch_size: 64\nsteps: 6\nthreads: 1\ndevice: cpu\n"
        "optimizer: {name: adamw, lr: 0.01, weight_decay: 0.01, no_decay: [bias]}\n"
    )
    return str(path)


def test_a_resumed_run_goes_on_as_if_it_had_never_ended(mlrun: Mlrun, dropout: str) -> None:
    whole = mlrun("launch", dropout, "-np", "2")
    assert whole.finish() == 0
    first = mlrun("launch", dropout, "-np", "2", "--set", "steps=3")
    assert first.finish() == 0
    second = mlrun("resume", str(first.folder), "--set", "steps=6")
    assert second.finish() == 0
    assert second.summary["parameter_hash"] == whole.summary["parameter_hash"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.name=resnet50", "did you mean keras:ResNet50?"),
        ("model.name=keras:ResNet5", "did you mean keras:ResNet50?"),
        ("data.source=parquet:x", "data.source"),
        ("device=mps", "sees no GPU"),
    ],
)
def test_what_tensorflow_lacks_is_said_in_a_sentence(change: str, said: str, dropout: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlrun.cli", "launch", dropout, "--set", change, "--console", "plain"],
        cwd=Path(dropout).parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_keras_resnet50_passes_its_smoke_run(mlrun: Mlrun) -> None:
    run = mlrun("launch", str(CONFIGS / "keras-resnet.yaml"), "--smoke")
    assert run.finish() == 0
    assert run.summary["parameters"] > 23_000_000
