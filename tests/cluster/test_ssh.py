"""Agents over the real ssh: any login shell, any place for Python, and failures in plain words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, missing
from tests.cluster.node import CHECKOUT, INSTALLED

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture
def room() -> Iterator[Cluster]:
    """Two hosts that a test may spoil."""
    with Cluster(2) as built:
        yield built


def greet(
    cluster: Cluster, *hosts: str | dict[str, Any], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    fields = [{"name": host} if isinstance(host, str) else host for host in hosts]
    argv = [sys.executable, "-m", "tests.cluster.greet", *map(json.dumps, fields)]
    return cluster.launcher.run(argv, cwd=CHECKOUT, timeout=timeout)


def refused(cluster: Cluster, host: str | dict[str, Any]) -> str:
    """The message of a host that can't be used; it must come with exit code 3 and leave nothing."""
    done = greet(cluster, host)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr == ""
    assert cluster.leftovers() == {}
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "profile"),
    [
        ("bash", ".bashrc"),
        ("zsh", ".zshenv"),
        ("fish", ".config/fish/config.fish"),
        ("tcsh", ".tcshrc"),
        ("dash", ".profile"),
    ],
)
def test_any_login_shell_with_a_chatty_profile_and_a_banner(shell: str, profile: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    with Cluster(1, shells={"mac1": path}) as cluster:
        mac1 = cluster.hosts["mac1"]
        mac1.install()
        script = mac1.home / profile
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("echo 'Welcome! {\"type\": \"Bye\"}'\necho oops >&2\nprintf 'no end of line'\n")
        done = greet(cluster, "mac1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("mac1: pid ")
        assert done.stdout.endswith("pong 1.5\n")
        assert cluster.leftovers() == {}


def test_all_hosts_at_once(cluster: Cluster) -> None:
    for host in cluster.hosts.values():
        host.install()
    done = greet(cluster, *cluster.hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == sorted(cluster.hosts)


def test_python_of_the_host_then_installed_then_workdir_then_the_launchers(room: Cluster) -> None:
    mac1 = room.hosts["mac1"]
    fields = {"name": "mac1", "workdir": "~/My Projects/it's digits"}
    launchers = room.launcher.install("some/env")
    same_place = mac1.install("some/env")
    assert interpreter(room, fields, python=launchers) == str(same_place)
    local = mac1.install("My Projects/it's digits/.venv")
    assert interpreter(room, fields, python=launchers) == str(local)
    installed = mac1.install()
    assert interpreter(room, fields) == str(installed)
    own = mac1.install("my $HOME env")
    assert interpreter(room, {**fields, "python": str(own)}) == str(own)
    assert interpreter(room, {**fields, "python": "~/my $HOME env/bin/python"}) == str(own)


def interpreter(cluster: Cluster, fields: dict[str, Any], python: Path = Path(sys.executable)) -> str:
    """The interpreter that runs the agent, as its process was started, when ``python`` is the launcher's."""
    code = (
        "import asyncio, json, sys\n"
        "from mlrun.hosts import Host\n"
        "from mlrun.launch.ssh import SshTransport\n"
        "from mlrun.protocol import Bye, Hello\n"
        "async def main():\n"
        "    t = SshTransport(Host(**json.loads(sys.argv[1])), '/nowhere')\n"
        "    await t.start()\n"
        "    t.send(Hello('x', 'mac1', 5.0))\n"
        "    print((await t.receive()).pid, flush=True)\n"
        "    sys.stdin.readline()\n"
        "    t.send(Bye())\n"
        "    await t.close(10)\n"
        "asyncio.run(main())\n"
    )
    argv = [str(python), "-c", code, json.dumps(fields)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    launcher = cluster.launcher.popen(argv, cwd=CHECKOUT, **pipes)
    assert launcher.stdout is not None
    assert launcher.stdout.readline().strip().isdigit()
    agents = [p.cmdline() for p in cluster.hosts["mac1"].processes() if "mlrun.agent" in p.cmdline()]
    launcher.communicate("\n", timeout=20)
    assert len(agents) == 1
    return agents[0][0]


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="every host has this Python, which has mlrun")
def test_no_mlrun_there_lists_what_was_found(room: Cluster) -> None:
    mac1 = room.hosts["mac1"]
    bare = mac1.install("work/.venv", mlrun=False)
    message = refused(room, {"name": "mac1", "workdir": "~/work"})
    assert "mac1: no Python with mlrun" in message
    assert f"{mac1.home}/{INSTALLED}/bin/python: not there" in message
    assert f"{bare}: Python " in message
    assert "without mlrun" in message
    assert "Fix: Install mlrun there: mlrun hosts install" in message
    found = mac1.install("miniforge3").with_name("python3")
    assert f"Fix: Set python: {found}" in refused(room, {"name": "mac1", "workdir": "~/work"})


def test_a_python_key_that_is_wrong_is_not_replaced_by_another(room: Cluster) -> None:
    room.hosts["mac1"].install()
    message = refused(room, {"name": "mac1", "python": "/opt/none/bin/python"})
    assert "/opt/none/bin/python: not there" in message


def test_no_key(room: Cluster) -> None:
    (room.hosts["mac2"].home / ".ssh" / "authorized_keys").unlink()
    message = refused(room, "mac2")
    assert "Permission denied (publickey" in message
    assert "Fix: Run `ssh-copy-id mac2`" in message
    assert "ssh-copy-id anna@mac2" in refused(room, {"name": "mac2", "user": "anna"})


def test_host_key_changed_and_never_seen(room: Cluster) -> None:
    known = room.launcher.home / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines()
    other = next(line for line in lines if line.startswith("mac2 "))
    known.write_text(other.replace("mac2 ", "mac1 ", 1) + "\n")
    message = refused(room, "mac1")
    assert "its host key has changed" in message
    assert "ssh-keygen -R mac1" in message
    known.write_text("")
    message = refused(room, "mac1")
    assert "never connected" in message
    assert "Run `ssh mac1` once" in message


def test_unknown_name(room: Cluster) -> None:
    message = refused(room, "mac9.invalid")
    assert "Could not resolve hostname mac9.invalid" in message
    assert ".local" in message


def test_remote_login_off(room: Cluster) -> None:
    message = refused(room, {"name": "mac1", "address": room.launcher.addresses["en0"]})
    assert "Connection refused" in message
    assert "turn Remote Login on" in message


def test_asleep(room: Cluster) -> None:
    room.hosts["mac1"].set_interface("en0", up=False)
    message = refused(room, "mac1")
    assert "asleep, switched off, or not on this network" in message
    assert "ping mac1" in message


def test_mistake_in_the_users_ssh_configuration(room: Cluster) -> None:
    (room.launcher.home / ".ssh" / "config").write_text("Host *\n  Nonsense yes\n")
    message = refused(room, "mac1")
    assert "ssh configuration has a mistake" in message


def test_users_configuration_can_not_disturb_the_pipe(room: Cluster) -> None:
    room.hosts["mac1"].install()
    (room.launcher.home / ".ssh" / "config").write_text(
        "Host big\n  HostName mac1\n  HostKeyAlias mac1\n"
        "Host *\n  RequestTTY force\n  RemoteCommand echo hello\n  ControlMaster auto\n"
        "  ControlPath ~/.ssh/cm-%C\n  ForwardAgent yes\n  LocalForward 9999 localhost:22\n  LogLevel QUIET\n"
    )
    done = greet(room, "big")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((room.launcher.home / ".ssh").glob("cm-*"))


def test_what_a_lost_agent_left_is_ended_over_a_second_ssh(room: Cluster) -> None:
    mac1 = room.hosts["mac1"]
    mac1.install()
    marked = mac1.popen(["sleep", "1000"], env={**mac1.environment(), "MLRUN_RUN": "run-1"})
    other = mac1.popen(["sleep", "2000"], env={**mac1.environment(), "MLRUN_RUN": "run-2"})
    code = (
        "import asyncio\nfrom mlrun.hosts import Host\nfrom mlrun.launch.ssh import SshTransport\n"
        "asyncio.run(SshTransport(Host('mac1'), '/nowhere').reap('run-1'))\n"
    )
    done = room.launcher.run([sys.executable, "-c", code], cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert marked.wait(timeout=10) != 0
    assert room.leftovers() == {"mac1": ["sleep 2000"]}
    other.kill()
    other.wait()


def test_aliases_of_the_ssh_configuration_count_when_asking_which_host_is_this(room: Cluster) -> None:
    own = room.launcher.addresses["en0"]
    (room.launcher.home / ".ssh" / "config").write_text(
        f"Host desk\n  HostName {own}\n"
        f"Host container\n  HostName {own}\n  Port 2222\n"
        f"Host jumped\n  HostName {own}\n  ProxyJump mac1\n"
    )
    code = (
        "from mlrun.hosts import parse_hosts\nfrom mlrun.launch.here import on_this_machine\n"
        "print(*sorted(on_this_machine(parse_hosts('desk,container,jumped,mac1,launcher,nobody.invalid'))))\n"
    )
    done = room.launcher.run([sys.executable, "-c", code], cwd=CHECKOUT)
    assert done.stdout.split() == ["desk", "launcher"], done.stderr


def test_a_stopped_agent_is_ended_too(room: Cluster) -> None:
    mac1 = room.hosts["mac1"]
    mac1.install()
    code = (
        "import asyncio, sys\n"
        "from mlrun.hosts import Host\n"
        "from mlrun.launch.ssh import SshTransport\n"
        "from mlrun.protocol import Hello\n"
        "async def main():\n"
        "    t = SshTransport(Host('mac1'), '/nowhere', 'run-1')\n"
        "    await t.start()\n"
        "    t.send(Hello('run-1', 'mac1', 60.0))\n"
        "    print((await t.receive()).pid, flush=True)\n"
        "    sys.stdin.readline()\n"
        "    assert not await t.close(0)\n"
        "    await t.reap('run-1')\n"
        "asyncio.run(main())\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    launcher = room.launcher.popen([sys.executable, "-c", code], cwd=CHECKOUT, **pipes)
    assert launcher.stdout is not None
    assert launcher.stdout.readline().strip().isdigit()
    (agent,) = mac1.processes()
    agent.suspend()
    launcher.communicate("\n", timeout=30)
    assert launcher.returncode == 0
    assert room.leftovers() == {}
