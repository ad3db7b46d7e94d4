"""A plug-in that breaks TensorFlow is told of in a sentence, and a GPU that trains otherwise is found out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow isn't installed: make tensorflow-test", allow_module_level=True)


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """An environment with a plug-in of an unknown version, whose library is no library."""
    record = tmp_path / "tensorflow_metal_plugin-9.9.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow-metal-plugin\nVersion: 9.9\n")
    library = tmp_path / "broken.so"
    library.write_text("no library")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(library)}


def mlrun(*arguments: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlrun.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=120
    )


def test_a_broken_plugin_ends_a_run_before_it_starts(tmp_path: Path, broken: dict[str, str]) -> None:
    (tmp_path / "job.yaml").write_text(
        "{name: j, framework: tensorflow, model: {name: mlp}, data: {source: digits}, "
        "batch_size: 8, steps: 1}"
    )
    run = mlrun("launch", "job.yaml", "--console", "plain", environment=broken, folder=tmp_path)
    assert run.returncode == 3
    assert "import tensorflow with tensorflow-metal-plugin 9.9 ended with 1" in run.stdout
    assert "broken.so" in run.stdout


def test_the_doctor_tells_of_a_broken_plugin(tmp_path: Path, broken: dict[str, str]) -> None:
    check = mlrun(
        "doctor", "--device-check", "--framework", "tensorflow", environment=broken, folder=tmp_path
    )
    assert check.returncode == 4
    assert "NO  plug-in: import tensorflow with tensorflow-metal-plugin 9.9" in check.stdout


def test_a_device_that_trains_as_the_cpu_does_agrees_and_another_doesnt() -> None:
    from mlrun.backends.tensorflow.device_check import STEPS, Finding, device_check  # noqa: PLC0415

    findings = device_check("/CPU:0")
    assert [finding.optimizer for finding in findings] == ["sgd", "adam"]
    for finding in findings:
        assert finding.agrees
        assert finding.expected[-1] < 0.9 * finding.expected[0]
        grows = [loss * (1 + step / STEPS) for step, loss in enumerate(finding.expected)]
        assert not Finding(finding.optimizer, finding.expected, grows).agrees
        assert not Finding(finding.optimizer, finding.expected, [float("nan")] * STEPS).agrees
        assert not Finding(finding.optimizer, finding.expected, [], "no such device").agrees
