"""The command, with simulated workers and real communication."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SPEC = """\
name: small
framework: sim
model: {name: resnet18}
sim: {samples_per_second: 800}
batch_size: 64
steps: 6
allreduce: {pace_mbit_s: 4000}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def scale_test(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlrun.cli", "scale-test", *arguments, "--out", "out"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def points(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "out" / "scale.json").read_text())["points"]
    return found


def test_two_counts_are_measured_one_predicted_and_all_of_it_written(spec: Path, tmp_path: Path) -> None:
    done = scale_test(tmp_path, str(spec), "-np", "2", "--predict", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"]
    told = points(tmp_path)
    assert [(p["workers"], p["kind"]) for p in told] == [(1, "simulated"), (2, "simulated"), (8, "predicted")]
    one, two, _ = told
    assert one["speed_up"] == 1.0
    assert one["samples_per_second"] <= 800  # a sleep ends late, and never early
    assert two["speed_up"] == pytest.approx(two["samples_per_second"] / one["samples_per_second"])
    assert "paced to 4000 Mbit/s" in two["explanation"]
    with (tmp_path / "out" / "scale.csv").open() as file:
        assert [row["workers"] for row in csv.DictReader(file)] == ["1", "2", "8"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in page
    assert "Simulated:" in page
    assert (tmp_path / "out" / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_a_slow_worker_is_named(spec: Path, tmp_path: Path) -> None:
    speeds = "sim.samples_per_second=[800,800,400]"
    done = scale_test(tmp_path, str(spec), "-np", "3", "--counts", "3", "--set", speeds)
    assert done.returncode == 0, done.stderr
    assert "rank 2 on localhost is" in done.stdout
    assert [each["workers"] for each in points(tmp_path)] == [1, 3]  # one is what three are compared with
    assert "slower than the median" in done.stdout


def test_too_little_efficiency_is_exit_4(spec: Path, tmp_path: Path) -> None:
    slow = ["--set", "allreduce.pace_mbit_s=400", "--set", "allreduce.overlap=false"]
    done = scale_test(tmp_path, str(spec), "-np", "2", "--min-efficiency", "0.9", *slow)
    assert done.returncode == 4, done.stderr


def test_batch_sizes_make_a_series_each(spec: Path, tmp_path: Path) -> None:
    done = scale_test(tmp_path, str(spec), "--counts", "1", "--batch-sizes", "32,64")
    assert done.returncode == 0, done.stderr
    assert [p["series"] for p in points(tmp_path)] == ["small, batch 32", "small, batch 64"]
    assert "batch size" in (tmp_path / "out" / "batches.svg").read_text()
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") == 2


def test_a_stopped_test_keeps_what_it_measured(spec: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlrun.cli", "scale-test", str(spec), "-np", "2", "--out", "out"]
    command += ["--set", "steps=30"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as test:
        while not (tmp_path / "out" / "scale.json").exists():
            assert test.poll() is None
            time.sleep(0.05)
        test.send_signal(signal.SIGINT)
        out, _ = test.communicate(timeout=60)
        assert test.returncode == 130, out
    content = json.loads((tmp_path / "out" / "scale.json").read_text())
    assert not content["complete"]
    assert [p["workers"] for p in content["points"]] == [1]


def test_requests_that_make_no_sense_are_refused(spec: Path, tmp_path: Path) -> None:
    for arguments, word in [
        (["--counts", "1,x"], "--counts '1,x' is no list"),
        (["--set", "steps=3"], "warm-up"),
        (["--fixed", "model"], "no such way"),
        (["--predict", "8", "--set", "allreduce.pace_mbit_s=null"], "bandwidth of the links isn't known"),
    ]:
        done = scale_test(tmp_path, str(spec), *arguments)
        assert (done.returncode, word in done.stderr) == (2, True), done.stderr


def test_each_series_of_a_chart_has_its_own_unit(spec: Path, tmp_path: Path) -> None:
    text = SPEC.replace("name: small", "name: words").replace("resnet18", "distilbert")
    (tmp_path / "words.yaml").write_text(text)
    done = scale_test(tmp_path, str(spec), "words.yaml", "--counts", "1")
    assert done.returncode == 0, done.stderr
    assert [(p["series"], p["unit"]) for p in points(tmp_path)] == [
        ("small", "images"),
        ("words", "sequences"),
    ]
    assert "sequences/s" in (tmp_path / "out" / "report.html").read_text()
