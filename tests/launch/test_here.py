"""This machine is recognised under each of its names."""

from __future__ import annotations

import getpass
import platform

from mlrun.hosts import Host
from mlrun.launch.here import on_this_machine
from mlrun.probe.addresses import addresses


def test_this_machine_by_name_and_by_address() -> None:
    own = next(a.address for a in addresses() if a.kind != "loopback" and "%" not in a.address)
    hosts = [
        Host("localhost"),
        Host(platform.node()),
        Host("by address", address=own),
        Host("with user", address=own, user=getpass.getuser()),
        Host("another user", address=own, user="somebody-else"),
        Host("192.0.2.250"),
    ]
    assert on_this_machine(hosts) == {"localhost", platform.node(), "by address", "with user"}
