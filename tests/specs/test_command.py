"""The command line around specs: validate, schema, init, help, and the errors that every command shares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlrun import specfile, starters
from mlrun.spec import JobSpec

CONFIGS = sorted(starters.folder().glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_shipped_specs_are_valid_with_and_without_smoke(path):
    assert specfile.load(path).name
    assert specfile.load(path, smoke=True).steps is not None


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_the_shipped_specs_refer_to_the_shipped_schema(path):
    reference = path.read_text().splitlines()[0].partition("$schema=")[2]

    assert (path.parent / reference).samefile(starters.folder() / starters.SCHEMA)


def test_the_shipped_schema_is_current(mlrun):
    done = mlrun("schema")

    assert done.code == 0
    assert done.out == (starters.folder() / starters.SCHEMA).read_text(), (
        "refresh it: mlrun schema > configs/spec.schema.json"
    )


def test_the_schema_describes_every_key():
    schema = json.loads(specfile.schema_text())
    blocks = [schema, *schema["$defs"].values()]
    undescribed = [
        key
        for block in blocks
        for key, value in block["properties"].items()
        if "description" not in value and "$ref" not in value and "anyOf" not in value
    ]

    assert undescribed == []


@pytest.mark.parametrize("kind", starters.KINDS)
def test_init_writes_a_valid_spec_and_never_overwrites(mlrun, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{kind}.yaml"

    assert mlrun("init", kind).code == 0
    assert mlrun("validate", str(path)).code == 0
    schema = Path(path.read_text().splitlines()[0].partition("$schema=")[2])
    assert schema.is_file()

    path.write_text("mine")
    refused = mlrun("init", kind)
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "mine"
    assert mlrun("init", kind, "--force").code == 0
    assert "model:" in path.read_text()


@pytest.mark.parametrize("kind", starters.KINDS)
def test_init_names_files_as_they_are_here(mlrun, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    done = mlrun("init", kind, "job.yaml")

    assert "mlrun launch job.yaml -np 2" in done.out
    assert "mlrun launch job.yaml -np 2" in (tmp_path / "job.yaml").read_text()
    assert "configs" not in (tmp_path / "job.yaml").read_text().split("\n", 1)[1]


def test_the_script_that_init_writes_trains_and_code_is_never_overwritten(mlrun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "script.yaml and mytask.py" in mlrun("init", "script").out
    done = mlrun("launch", "script.yaml", "--smoke", "--console", "json")
    assert json.loads(done.out.splitlines()[-1])["summary"]["status"] == "done"

    (tmp_path / "mytask.py").write_text("mine = 1\n")
    assert "mytask.py" not in mlrun("init", "script", "--force").out
    assert (tmp_path / "mytask.py").read_text() == "mine = 1\n"


def test_init_names_the_kinds_there_are(mlrun):
    done = mlrun("init", "resnet")

    assert done.code == 2
    assert "digits, resnet50, script" in done.err


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", "launch", "resume", "validate", "schema", "init", "bench allreduce"])
def test_help_has_an_example(mlrun, command, flag):
    done = mlrun(*command.split(), flag)

    assert done.code == 0
    assert "Example: mlrun" in done.out


def test_dry_run_shows_the_spec_and_who_would_work(mlrun, good, tmp_path):
    done = mlrun(
        "launch",
        str(good),
        "-np",
        "2",
        "--set",
        "optimizer.lr=0.25",
        "--dry-run",
        "--runs-dir",
        str(tmp_path / "runs"),
    )

    assert done.code == 0
    path = tmp_path / "shown.yaml"
    path.write_text(done.out)
    shown = specfile.load(path)
    assert (shown.optimizer.lr, shown.batch_size) == (0.25, 8)
    assert "rank 1 on localhost: 8 samples per step" in done.out
    assert "global batch 16" in done.out
    assert not (tmp_path / "runs").exists()


def test_engine_and_device_are_short_for_set(mlrun, good):
    done = mlrun("launch", str(good), "--engine", "gloo", "--device", "cpu", "--dry-run")
    assert "engine: gloo" in done.out
    assert "device: cpu" in done.out

    wrong = mlrun("launch", str(good), "--device", "gpu")
    assert wrong.code == 2
    assert "auto, cpu, mps, cuda" in wrong.err


def annotations(done):
    return [line for line in done.err.splitlines() if line.startswith("::error ")]


def test_under_actions_each_mistake_of_a_smoke_spec_annotates_its_line(mlrun, write, monkeypatch):
    path = write("name: job\nmodel: {name: m}\nsteps: 0\nbatch_size: x\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    places = [note.split("::")[1] for note in annotations(mlrun("launch", str(path), "--smoke"))]
    assert places == [f"error file={path},line=3,col=8", f"error file={path},line=4,col=13"]
    assert annotations(mlrun("launch", str(path))) == []


def test_under_actions_a_failed_smoke_run_annotates_the_spec(mlrun, write, monkeypatch, tmp_path):
    path = write("name: job\nmodel: {name: nowhere_module:thing}\nsteps: 2\nbatch_size: 2\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    done = mlrun("launch", str(path), "--smoke", "--console", "json", "--runs-dir", str(tmp_path / "runs"))
    (note,) = annotations(done)
    assert done.code == 2
    assert note.startswith(f"::error file={path},line=1,col=1::rank 0 on localhost: ")
    assert "nowhere_module" in note
    assert json.loads(done.out.splitlines()[-1])["type"] == "SummaryEvent"


def test_the_unrelated_mlrun_of_pypi_is_refused(mlrun, good, tmp_path, monkeypatch):
    info = tmp_path / "site" / "mlrun-1.7.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlrun\nVersion: 1.7.0\n")
    monkeypatch.syspath_prepend(str(info.parent))

    done = mlrun("validate", str(good))
    assert done.code == 3
    assert "1.7.0" in done.err
    assert "pip uninstall mlrun" in done.err


def test_a_fault_of_ours_is_one_sentence_and_a_file_with_the_traceback(mlrun, good, monkeypatch, tmp_path):
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(specfile, "load", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    done = mlrun("validate", str(good))
    assert done.code == 1
    assert "ZeroDivisionError: of ours" in done.err
    (written,) = tmp_path.glob("*.traceback")
    assert str(written) in done.err
    assert "in broken" in written.read_text()


def test_help_imports_nothing_heavy():
    program = """
import runpy, sys
sys.argv = ["mlrun", "--help"]
try:
    runpy.run_module("mlrun.cli", run_name="__main__")
except SystemExit:
    print([name for name in ("torch", "numpy", "pydantic", "yaml") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_resolved_spec_loads_again_as_itself(good):
    spec = specfile.load(good, ["optimizer.name=adamw", "optimizer.betas=[0.8, 0.9]"])

    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
