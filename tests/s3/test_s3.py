"""A bucket of a real S3 server on loopback as the source of a run. Needs the extra s3 and moto's server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mlrun.data.folder import DataError
from mlrun.data.url import UrlFolder
from tests.data.photographs import write_photographs

s3fs = pytest.importorskip("s3fs", reason="needs mlrun-ring[s3]")
pytest.importorskip("moto.server", reason="needs moto[server]")

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("at", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of a server with the bucket ``flowers``, 20 photographs in it."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("at "))
        endpoint = f"http://127.0.0.1:{line.split()[1]}"
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        s3fs.S3FileSystem.clear_instance_cache()
        write_photographs(tmp_path / "photographs", 20)
        files = s3fs.S3FileSystem()
        files.mkdir("flowers")
        files.put(str(tmp_path / "photographs"), "flowers/photographs", recursive=True)
        yield endpoint
        server.stdin.close()
        server.wait(10)


def folder() -> UrlFolder:
    s3fs.S3FileSystem.clear_instance_cache()
    return UrlFolder("s3://flowers", "photographs", "imagefolder")


def launch(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    spec = {
        "name": "s3",
        "model": {"name": "resnet18"},
        "data": {
            "source": "imagefolder",
            "location": "s3://flowers",
            "path": "photographs",
            "image_size": 16,
            "workers": 1,
        },
        "batch_size": 5,
        "epochs": 2,
        "device": "cpu",
        "threads": 1,
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "mlrun.cli", "launch", "spec.yaml", "-np", "2", "--console", "plain"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)


def test_two_workers_train_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    done = launch(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = next((tmp_path / "runs").glob("s3-*"))
    ranks = json.loads((run / "summary.json").read_text())["ranks"]
    assert sum(rank["files_fetched"] for rank in ranks) == 20
    assert "secret" not in (run / "spec.yaml").read_text()


def test_wrong_credentials_are_one_sentence(bucket: str, tmp_path: Path) -> None:
    """From now on the server lets nobody in whom it doesn't know."""
    strict = urllib.request.Request(f"{bucket}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
    urllib.request.urlopen(strict).close()
    done = launch(tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "data.location: s3://flowers/photographs may not be read: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_no_credentials_are_one_sentence(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", os.devnull)
    with pytest.raises(DataError, match=r"s3://flowers/photographs may not be read"):
        folder()


def test_a_missing_key_and_a_truncated_object_are_named(bucket: str) -> None:
    opened = folder()
    gone, short = opened.listing.names[:2]
    files = s3fs.S3FileSystem()
    files.rm(f"flowers/photographs/{gone}")
    files.pipe(f"flowers/photographs/{short}", b"half of it")
    with pytest.raises(DataError, match=rf"s3://flowers/photographs/{gone} isn't there"):
        opened.read(gone)
    with pytest.raises(DataError, match=rf"{short} is truncated: 10 of [\d,]+ bytes came"):
        opened.read(short)


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    with pytest.raises(DataError, match="s3://nobody isn't there"):
        UrlFolder("s3://nobody", None, "imagefolder")
