"""Which of the hosts is this machine: its workers are local children, not reached over ssh."""

from __future__ import annotations

import getpass
import ipaddress
import platform
import socket
import subprocess
import threading
from collections.abc import Sequence

from mlrun.hosts import Host
from mlrun.launch.ssh import ssh_command
from mlrun.probe.addresses import addresses

LOOKUP_TIMEOUT_S = 5.0
"""A name that takes longer to look up is another machine's."""

# What must be as they are for ssh to lead to this very account.
_DIRECT = {"port": "22", "proxyjump": "none", "proxycommand": "none"}


def on_this_machine(hosts: Sequence[Host]) -> set[str]:
    """The names of those ``hosts`` that are this machine, for this user, by name or by address.

    People's ssh configuration is asked, so that its aliases count; names are looked up all at once.
    """
    mine = {a.address.split("%")[0] for a in addresses()}
    found: set[str] = set()

    def judge(host: Host) -> None:
        if _is_here(host, mine):
            found.add(host.name)

    threads = [threading.Thread(target=judge, args=[host], daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LOOKUP_TIMEOUT_S)
    return set(found)


def _is_here(host: Host, mine: set[str]) -> bool:
    if host.is_local:
        return True
    settings = ssh_settings(host)
    target = settings.get("hostname", host.destination)
    if settings.get("user") not in (None, getpass.getuser()):
        return False
    if any(settings.get(key, value) != value for key, value in _DIRECT.items()):
        return False
    if _bare(target) == _bare(platform.node()):
        return True
    found = addresses_of(target)
    return not found.isdisjoint(mine) or any(ipaddress.ip_address(address).is_loopback for address in found)


def ssh_settings(host: Host) -> dict[str, str]:
    """What ssh would do for ``host``, without doing it."""
    command = ssh_command(host)
    try:
        done = subprocess.run(
            [command[0], "-G", *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOKUP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key: value for key, _, value in pairs}


def _bare(name: str) -> str:
    return name.casefold().rstrip(".").removesuffix(".local")


def addresses_of(target: str) -> set[str]:
    """The literal addresses, without scope, that ``target`` has for this machine; none where it's unknown."""
    try:
        return {str(entry[4][0]).split("%")[0] for entry in socket.getaddrinfo(target, None)}
    except (OSError, UnicodeError):
        return set()
