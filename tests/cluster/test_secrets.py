"""What the spec's ``env`` gives to workers is theirs alone: on no disk, and in no list of processes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import OFFICE, Cluster, missing
from tests.cluster.node import CHECKOUT

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

START_S = 120.0


@pytest.fixture(scope="module")
def room() -> Iterator[Cluster]:
    with Cluster(2, [OFFICE]) as built:
        for host in built.hosts.values():
            host.install()
            for name in ("id_ed25519", "known_hosts"):
                (host.home / ".ssh" / name).write_bytes((built.launcher.home / ".ssh" / name).read_bytes())
                (host.home / ".ssh" / name).chmod(0o600)
        yield built


@pytest.mark.parametrize(
    "detach",
    [pytest.param((), id="launched", marks=pytest.mark.slow), pytest.param(("--detach",), id="detached")],
)
def test_a_secret_is_nowhere_but_with_the_workers(room: Cluster, detach: tuple[str, ...]) -> None:
    written, passed, on_host = (secrets.token_hex(16) for _ in range(3))
    work = room.root / f"work{len(detach)}"
    work.mkdir()
    spec = yaml.safe_load((CHECKOUT / "configs" / "digits.yaml").read_text())
    spec |= {"epochs": None, "steps": 1_000_000, "threads": 1, "device": "cpu", "workdir": str(work)}
    spec["env"] = {"WANDB_API_KEY": written, "HF_TOKEN": None, "PLAIN": "plain"}
    spec["hosts"] = ["mac1", {"name": "mac2", "env": {"S3_URL": f"https://me:{on_host}@store.example"}}]
    file = room.root / "job.yaml"
    file.write_text(yaml.safe_dump(spec))
    environment = {**room.launcher.environment(), "PYTHONPATH": str(CHECKOUT), "HF_TOKEN": passed}

    def mlrun(*arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "mlrun.cli", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return room.launcher.popen(argv, cwd=work, env=environment, **pipes)

    launched = mlrun("launch", str(file), "--console", "plain", *detach)
    assert launched.stdout is not None
    seen = []
    for line in launched.stdout:
        seen.append(line)
        if "step 1/" in line:
            break
    if detach:
        assert launched.wait(START_S) == 0, seen
    everywhere = [p for node in (room.launcher, *room.hosts.values()) for p in node.processes()]
    lines = [" ".join(process.cmdline()) for process in everywhere]
    workers = [process for process, line in zip(everywhere, lines, strict=True) if "mlrun.worker" in line]
    assert len(workers) == 2
    for worker in workers:
        values = worker.environ()
        assert (values["WANDB_API_KEY"], values["HF_TOKEN"]) == (written, passed)
    assert any(on_host in worker.environ().get("S3_URL", "") for worker in workers)
    for secret in (written, passed, on_host):
        assert not [line for line in lines if secret in line]

    assert mlrun("stop", "last").wait(START_S) == 0
    launched.communicate(timeout=START_S)
    file.unlink()
    specs = list(room.root.rglob("spec.yaml"))
    assert any("PLAIN: plain" in path.read_text() for path in specs)
    for secret in (written, passed, on_host):
        assert files_with(secret, room.root) == []


def files_with(secret: str, root: Path) -> list[Path]:
    """Files of the launcher and of every host, their temporary folders included, that hold ``secret``."""
    found = []
    for folder, _, names in os.walk(root):
        for path in (Path(folder) / name for name in names):
            if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes():
                found.append(path)
    return found
