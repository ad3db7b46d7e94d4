"""Files that can't be decoded: the run stops with their name, or goes on without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlrun import runs
from tests.data.photographs import write_photographs

SPEC = """\
name: photographs
model: {name: resnet8}
data: {source: imagefolder, path: images, image_size: 16, workers: 1, val_split: 0.25}
global_batch_size: 8
epochs: 1
evaluate: {every_epochs: 1}
device: cpu
threads: 1
"""


def launch(folder: Path, *sets: str) -> subprocess.CompletedProcess[str]:
    (folder / "spec.yaml").write_text(SPEC)
    command = [sys.executable, "-m", "mlrun.cli", "launch", "spec.yaml", "-np", "2", "--console=plain"]
    return subprocess.run(
        [*command, "--runs-dir=runs", *(f"--set={each}" for each in sets)],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_truncated_photograph_stops_the_run_or_is_left_out_and_counted(tmp_path: Path) -> None:
    write_photographs(tmp_path / "images", 40, side=32)
    broken = sorted((tmp_path / "images").glob("*/*.jpg"))[:3]
    for path in broken:
        path.write_bytes(path.read_bytes()[:300])

    stopped = launch(tmp_path)
    assert stopped.returncode == 1
    assert any(path.name in stopped.stdout + stopped.stderr for path in broken)
    assert "data.on_bad_file: skip" in stopped.stdout + stopped.stderr

    went_on = launch(tmp_path, "data.on_bad_file=skip")
    assert went_on.returncode == 0, went_on.stdout + went_on.stderr
    summary = runs.read_summary(runs.all_runs(tmp_path / "runs")[0])
    assert (summary["left_out"], summary["hashes_agree"]) == (3, True)
    assert "3 bad files or rows" in went_on.stdout
    assert all(path.name in went_on.stdout for path in broken)
