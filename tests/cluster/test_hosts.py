"""``mlrun hosts``: a host from its first contact to its last trace, through the commands a user types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import OFFICE, PASSWORD, Cluster, missing
from tests.cluster.node import CHECKOUT, Node

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SPEC = """\
name: sim
framework: sim
model: {name: resnet50}
data: {source: synthetic}
batch_size: 4
steps: 3
"""


def mlrun(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**node.environment(), "PYTHONPATH": str(CHECKOUT)}
    return node.run([sys.executable, "-m", "mlrun.cli", *arguments], timeout=240, env=environment)


def listing(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*")}


def on_a_terminal(node: Node, arguments: list[str], answers: dict[str, str]) -> tuple[int, str]:
    """Run a command on a terminal where a question (its last words) gets its answer; exit code and screen."""
    ours, theirs = pty.openpty()
    child = node.popen(
        [sys.executable, "-m", "mlrun.cli", *arguments],
        env={**node.environment(), "PYTHONPATH": str(CHECKOUT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    screen, answered = "", 0
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                screen += os.read(ours, 4096).decode(errors="replace")
            except OSError:  # The terminal's other end is closed.
                break
            for question, answer in answers.items():
                if screen[answered:].rstrip().endswith(question):
                    answered = len(screen)
                    os.write(ours, f"{answer}\n".encode())
        return child.wait(timeout=10), screen.replace("\r\n", "\n")
    finally:
        child.kill()
        os.close(ours)


@pytest.fixture
def strangers() -> Iterator[Cluster]:
    with Cluster(2, [OFFICE], strangers=True) as built:
        yield built


def test_from_first_contact_to_the_last_trace(strangers: Cluster) -> None:
    launcher = strangers.launcher
    homes = [host.home for host in strangers.hosts.values()]
    before = [listing(home) for home in homes]

    answers = {"(yes/no/[fingerprint])?": "yes", "password:": PASSWORD}
    code, screen = on_a_terminal(launcher, ["hosts", "add", "mac1", "mac2", "--group", "studios"], answers)
    assert code == 0, screen
    assert "mac1: reached at 10.71.0.2 over Ethernet (en0)" in screen
    assert listing(launcher.home / ".config") == {"mlrun", "mlrun/hosts.yaml"}
    met = [listing(home) for home in homes]
    assert [now - was for now, was in zip(met, before, strict=True)] == [{".ssh/authorized_keys"}] * 2

    # Again nothing is asked, and a host without Remote Login is told apart from one that isn't there.
    again = mlrun(launcher, "hosts", "add", "mac1", "mac9", "launcher")
    assert again.returncode == 1
    assert "mac1: reached" in again.stdout
    assert "mac9: no machine of this name" in again.stdout
    assert "launcher: it is there, but Remote Login is off" in again.stdout

    unready = mlrun(launcher, "hosts", "check", "-H", "@studios", "--framework", "sim")
    assert unready.returncode == 4, unready.stderr
    assert "mac1  not reached" in unready.stdout
    assert "Fix: Install mlrun there: mlrun hosts install" in unready.stdout

    for _ in range(2):
        done = mlrun(launcher, "hosts", "install", "-H", "@studios", "--framework", "sim", "--offline")
        assert done.returncode == 0, done.stdout + done.stderr
    for home, was in zip(homes, met, strict=True):
        ours = (".local", ".local/share", ".local/share/mlrun", ".local/share/mlrun/venv")
        assert all(p in ours or p.startswith(".local/share/mlrun/venv/") for p in listing(home) - was)

    ready = mlrun(launcher, "hosts", "check", "-H", "@studios", "--framework", "sim")
    assert ready.returncode == 0, ready.stdout + ready.stderr
    assert "mac1 → mac2 over Ethernet (en0)" in ready.stdout

    (launcher.home / "sim.yaml").write_text(SPEC)
    run = mlrun(launcher, "launch", "sim.yaml", "-H", "@studios", "--console", "plain")
    assert run.returncode == 0, run.stdout + run.stderr

    gone = mlrun(launcher, "hosts", "uninstall", "-H", "@studios")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert [listing(home) for home in homes] == met
    assert strangers.leftovers() == {}


@pytest.fixture
def room() -> Iterator[Cluster]:
    with Cluster(1, [OFFICE]) as built:
        yield built


def test_clean_and_uninstall_remove_what_the_dry_run_names(room: Cluster) -> None:
    home = room.hosts["mac1"].home
    for file in (".ssh/config", ".local/share/fish/history", "runs/mine.txt"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    theirs = listing(home)
    for file in ("venv/bin/python", "code/project/train.py", "runs/old/rank-0.log"):
        (home / ".local/share/mlrun" / file).parent.mkdir(parents=True)
        (home / ".local/share/mlrun" / file).touch()
    everything = listing(home)

    for command, named in (("clean", {"code", "runs"}), ("uninstall", {"mlrun"})):
        plan = mlrun(room.launcher, "hosts", command, "-H", "mac1", "--dry-run")
        assert plan.returncode == 0, plan.stderr
        lines = [line for line in plan.stdout.splitlines() if "would remove" in line]
        assert {line.split(" (")[0].rsplit("/")[-1] for line in lines} == named
    assert listing(home) == everything

    assert mlrun(room.launcher, "hosts", "clean", "-H", "mac1").returncode == 0
    kept = {p for p in everything - theirs if "mlrun/code" not in p and "mlrun/runs" not in p}
    assert listing(home) == theirs | kept
    assert mlrun(room.launcher, "hosts", "uninstall", "-H", "mac1").returncode == 0
    assert listing(home) == theirs

    done = mlrun(room.launcher, "hosts", "clean", "-H", "mac1,mac9")
    assert done.returncode == 1
    assert "mac1: nothing of mlrun is there" in done.stdout
    assert "mac9: no machine of this name" in done.stdout
