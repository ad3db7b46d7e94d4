"""``mlrun hosts add``: from a Mac that was never met to one that admits this machine without a question.

ssh itself asks on the user's terminal whether a host key is right and what the password is; mlrun sees
neither answer.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from mlrun.errors import ExitCode, MlrunError, RefusedError
from mlrun.fleet.shell import Say
from mlrun.hosts import Host, save_group
from mlrun.launch.here import addresses_of, ssh_settings
from mlrun.launch.ssh import CONNECT_TIMEOUT_S, ssh_command
from mlrun.launch.ssh_failures import explain
from mlrun.network.report import kind_name
from mlrun.probe.addresses import addresses

EVERYONE = "all"
"""The group of all hosts that were ever added."""
_SLACK_S = 20.0


def add(hosts: Sequence[Host], group: str | None, say: Say) -> ExitCode:
    """Make every host one that a run can use, and save those that are; RUN_FAILED where one isn't.

    Raises:
        RequestError: a group that can't be named or saved so.
    """
    met = []
    for host in hosts:
        try:
            _meet(host, say)
        except MlrunError as error:
            say(str(error))
        else:
            met.append(host)
    if met:
        for name in dict.fromkeys([EVERYONE, group or EVERYONE]):
            path = save_group(name, met)
        say(f"saved in {path}; --hosts @{group or EVERYONE} stands for the whole group")
    return ExitCode.DONE if len(met) == len(hosts) else ExitCode.RUN_FAILED


def _meet(host: Host, say: Say) -> None:
    steps = [("Host key verification failed", _accept_key), ("Permission denied", _copy_key)]
    while (refusal := _try(host)) is not None:
        words, code = refusal
        step = next((each for each in steps if each[0] in words), None)
        if step is None or "IDENTIFICATION HAS CHANGED" in words:
            raise explain(words, code, host)
        steps.remove(step)
        step[1](host, say)
    say(f"{host.name}: reached {_link_to(host)}")


def _try(host: Host) -> tuple[str, int | None] | None:
    """None where ``host`` admits this machine without asking, else what ssh said and its exit code."""
    try:
        done = subprocess.run(
            [*ssh_command(host), "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONNECT_TIMEOUT_S + _SLACK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "Connection timed out: no answer after the connection was made", None
    return None if done.returncode == 0 else (done.stderr.decode(errors="replace"), done.returncode)


def _accept_key(host: Host, say: Say) -> None:
    say(f"{host.name}: never met before. Compare the key that ssh shows with the one on its own screen:")
    say("    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    options = ["BatchMode=no", "StrictHostKeyChecking=ask", "PreferredAuthentications=none"]
    command = ssh_command(host)
    subprocess.run([command[0], *(f"-o{option}" for option in options), *command[1:], "true"], check=False)


def _copy_key(host: Host, say: Say) -> None:
    own = Path.home() / ".ssh" / "id_ed25519"
    offered = subprocess.run(["ssh-add", "-L"], capture_output=True, check=False).returncode == 0
    if not offered and not any(own.parent.glob("id_*.pub")):
        say(f"this machine has no ssh key yet: making {own}")
        own.parent.mkdir(mode=0o700, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-f", str(own)], check=False)
    login = f"{host.user}@{host.destination}" if host.user else host.destination
    say(
        f"{host.name}: doesn't admit this machine's key yet. ssh-copy-id brings it and asks for the password:"
    )
    try:
        subprocess.run(["ssh-copy-id", login], check=False)
    except FileNotFoundError:
        raise RefusedError(
            f"{host.name}: there is no ssh-copy-id on this machine",
            fix=f"append {own}.pub to ~/.ssh/authorized_keys on {host.name}",
        ) from None


def _link_to(host: Host) -> str:
    """Which of this machine's interfaces leads to ``host``, as the system routes now."""
    target = ssh_settings(host).get("hostname", host.destination)
    for address in sorted(addresses_of(target)):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            try:
                probe.connect((address, 22))
            except OSError:
                continue
            source = probe.getsockname()[0]
        for own in addresses():
            if own.address.split("%")[0] == source:
                return f"at {address} over {kind_name(own.kind)} ({own.interface})"
    return f"at {target}"
