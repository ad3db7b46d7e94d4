"""The parts of the ssh transport that need no other machine: its script, its command, its explanations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mlrun.errors import ExitCode
from mlrun.hosts import Host
from mlrun.launch.ssh import REMOTE_COMMAND, bootstrap, interpreters, ssh_command, swap_home
from mlrun.launch.ssh_failures import explain


def become(
    home: Path, pythons: list[str], workdir: str, after: bytes = b"", shell: str = "/bin/sh"
) -> tuple[list[str], int]:
    """What the script prints when a login shell runs it as sshd would, with ``after`` next in the pipe."""
    done = subprocess.run(
        [shell, "-c", REMOTE_COMMAND],
        input=bootstrap(["platform"], pythons, workdir, "nonce") + after,
        capture_output=True,
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        timeout=60,
        check=False,
    )
    return done.stdout.decode().splitlines(), done.returncode


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with mlrun below a folder whose name no shell likes."""
    folder = tmp_path / 'it\'s $HOME; `a` "b"' / "env"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "paths.pth").write_text("\n".join(path for path in sys.path if path) + "\n")
    (packages / "checkout.pth").write_text(f"{Path(__file__).parents[2]}\n")
    return folder


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh"])
def test_every_shell_becomes_the_program(tmp_path: Path, environment: Path, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    python = f"~/{environment.relative_to(tmp_path)}/bin/python"
    lines, code = become(tmp_path, ["/nowhere/python", python], "~", shell=path)
    assert lines[:2] == ["", "nonce start"]
    assert len(lines) == 3
    assert code == 0


def test_the_program_reads_on_where_the_script_ended(tmp_path: Path, environment: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", REMOTE_COMMAND],
        input=bootstrap(["base64", "-e"], [str(environment / "bin" / "python")], "~", "nonce") + b"hello",
        capture_output=True,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        timeout=60,
        check=False,
    )
    assert done.stdout == b"\nnonce start\naGVsbG8=\n"


def test_without_a_fitting_python_the_places_are_listed(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    lines, code = become(tmp_path, ["~/none/bin/python", str(bare / "bin" / "python")], "~")
    version = ".".join(map(str, sys.version_info[:3]))
    assert lines[1] == "nonce none"
    assert f"{tmp_path}/none/bin/python: not there" in lines
    assert f"{bare}/bin/python: Python {version} without mlrun and psutil" in lines
    assert code == 127


def test_where_a_python_is_looked_for() -> None:
    host = Host("mac1")
    assert interpreters(host, "~/job", "/Users/anna/env/bin/python", "/Users/anna") == [
        "~/.local/share/mlrun/venv/bin/python",
        "~/job/.venv/bin/python",
        "~/env/bin/python",
    ]
    assert interpreters(Host("mac1", python="/x/python"), "~/job", "/y", "/z") == ["/x/python"]


def test_only_the_home_folder_itself_is_swapped() -> None:
    assert swap_home("/Users/anna/x", "/Users/anna/") == "~/x"
    assert swap_home("/Users/anna", "/Users/anna") == "~"
    assert swap_home("/Users/annabel/x", "/Users/anna") == "/Users/annabel/x"
    assert swap_home("/opt/x", "/") == "/opt/x"


def test_the_destination_can_not_be_read_as_an_option() -> None:
    command = ssh_command(Host("mac1", address="fe80::1%en0", user="anna"))
    assert command[0] == "ssh"
    assert command[-4:] == ["-l", "anna", "--", "fe80::1%en0"]


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        (
            "anna@mac1: Permission denied (publickey,password,keyboard-interactive).",
            "key",
            "ssh-copy-id anna@mac1",
        ),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
            "many keys",
            "IdentityFile",
        ),
        (
            "ssh: Could not resolve hostname mac1: nodename nor servname provided, or not known",
            "name",
            ".local",
        ),
        ("ssh: connect to host mac1 port 22: Connection refused", "Remote Login is off", "Remote Login on"),
        ("ssh: connect to host mac1 port 22: Operation timed out", "asleep", "ping mac1"),
        ("ssh: connect to host mac1 port 22: Host is down", "asleep", "ping mac1"),
        (
            "kex_exchange_identification: Connection closed by remote host",
            "ended the connection",
            "try again",
        ),
        (
            "No ED25519 host key is known for mac1.\nHost key verification failed.",
            "never",
            "`ssh anna@mac1` once",
        ),
        (
            "@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@@@@\n"
            "Host key verification failed.",
            "host key has changed",
            "ssh-keygen -R mac1",
        ),
        (
            "/Users/anna/.ssh/config: line 3: Bad configuration option: nonsense",
            "configuration",
            "Correct the line",
        ),
        ("something new", "before the agent started", "Try `ssh anna@mac1 true`"),
    ],
)
def test_words_of_ssh_get_a_reason_and_a_fix(said: str, reason: str, fix: str) -> None:
    error = explain(f"** Welcome **\n{said}\r\n", 255, Host("mac1", user="anna"))
    assert error.exit_code is ExitCode.REFUSED
    assert reason in error.message
    assert said.splitlines()[-1] in error.message
    assert error.fix is not None
    assert fix in error.fix


def test_silence_is_told_as_such() -> None:
    error = explain("", 1, Host("mac1"))
    assert "its login shell ended with code 1" in error.message
    assert "(nothing)" in error.message
