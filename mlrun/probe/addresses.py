"""Where this host can be reached: its addresses, with the kind of interface that has each."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlrun.probe import macos

SYSFS = Path("/sys/class/net")
_LOOPBACK_TYPE = "772"
_NO_LINK_LAYER_TYPE = "65534"


@dataclass(frozen=True, slots=True)
class Address:
    """One literal address of one interface."""

    interface: str
    kind: str | None
    """thunderbolt | thunderbolt-bridge | ethernet | wifi | vpn | virtual | loopback; None where unknown."""
    address: str
    """IPv4 or IPv6; a link-local IPv6 address carries its scope (``fe80::1%en0``)."""
    prefix_length: int | None
    up: bool
    """Switched on, and as far as the system tells with a cable in it."""


def addresses() -> list[Address]:
    """Every IPv4 and IPv6 address of this host, in the system's order of interfaces."""
    kind, unplugged = _macos_ports() if sys.platform == "darwin" else (linux_kind, frozenset())
    states = psutil.net_if_stats()
    found = []
    for interface, entries in psutil.net_if_addrs().items():
        up = interface in states and states[interface].isup and interface not in unplugged
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                length = _prefix_length(entry.netmask)
                found.append(Address(interface, kind(interface), entry.address, length, up))
    return found


def linux_kind(interface: str, sysfs: Path = SYSFS) -> str | None:
    """The kind of a Linux interface, from what the kernel shows of it under ``sysfs``."""
    folder = sysfs / interface
    link_type = _read(folder / "type")
    if link_type is None:
        return None
    if link_type == _LOOPBACK_TYPE:
        return "loopback"
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wifi"
    if link_type == _NO_LINK_LAYER_TYPE or (folder / "tun_flags").exists():
        return "vpn"
    device = folder / "device"
    if device.exists():
        return "thunderbolt" if "thunderbolt" in (device / "driver").resolve().name else "ethernet"
    # A virtual cable out of a container or namespace: to those inside, it is their Ethernet port.
    leads_out = _read(folder / "iflink") != _read(folder / "ifindex")
    stacked = any(folder.glob("lower_*")) or (folder / "bridge").exists()
    return "ethernet" if leads_out and not stacked else "virtual"


def _macos_ports() -> tuple[Callable[[str], str | None], frozenset[str]]:
    """How to tell an interface's kind on this Mac, and which interfaces have no cable in them.

    A Mac calls a port without a cable up and running; only its ``status`` tells.
    """
    ports = macos.hardware_ports()
    states = macos.parse_ifconfig(macos.ifconfig())
    bridged = states["bridge0"].members if "bridge0" in states else ()
    unplugged = frozenset(interface for interface, state in states.items() if state.active is False)
    return lambda interface: macos.kind_of(interface, ports, bridged), unplugged


def _prefix_length(netmask: str | None) -> int | None:
    if netmask is None:
        return None
    try:
        return int(ipaddress.ip_address(netmask)).bit_count()
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
