"""What macOS's own tools say of network ports: parsers, and the calls that feed them.

Nothing here trusts the tools to be complete: an output that is cut, empty or has other systems' lines in
it gives fewer answers, never an error.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

TOOL_DEADLINE_S = 10.0

_HEADER = re.compile(r"^(\S+?): flags=[0-9a-f]+<([^>]*)>")
_MEMBER = re.compile(r"^\s+member: (\S+)")
_STATUS = re.compile(r"^\s+status: (\S+)")
_THUNDERBOLT_PORT = re.compile(r"Thunderbolt \d+")
_TUNNELS = ("utun", "ipsec", "ppp", "tun", "tap", "wg", "feth", "zt")
_VIRTUAL = (
    "awdl",
    "llw",
    "anpi",
    "ap",
    "p2p",
    "gif",
    "stf",
    "vmnet",
    "vmenet",
    "bridge",
    "vlan",
    "vnic",
    "pktap",
)
_LOW_POWER = re.compile(r"^\s*lowpowermode\s+([01])\b", re.MULTILINE)
# Ports that reach a phone or a headset: a network by name only.
_TETHERS = re.compile(r"iPhone|iPad|Bluetooth")


@dataclass(frozen=True, slots=True)
class PortState:
    """One block of ``ifconfig``. ``active`` is whether something is plugged in; None where it isn't said."""

    flags: frozenset[str]
    active: bool | None
    members: tuple[str, ...]
    """Interfaces joined by this one, where it is a bridge."""


@dataclass(frozen=True, slots=True)
class BridgeState:
    """A bridge of Thunderbolt ports. Two ``cabled`` ports on each of three Macs may close a loop."""

    interface: str
    members: tuple[str, ...]
    cabled: tuple[str, ...]
    """Members with a cable in them."""
    up: bool


def parse_hardware_ports(text: str) -> dict[str, str]:
    """Device -> port name, from ``networksetup -listallhardwareports``."""
    ports: dict[str, str] = {}
    name = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Hardware Port":
            name = value.strip()
        elif key == "Device" and name and value.strip():
            ports[value.strip()] = name
            name = None
    return ports


def parse_ifconfig(text: str) -> dict[str, PortState]:
    """Interface -> state, from ``ifconfig``."""
    states: dict[str, PortState] = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        header = _HEADER.match(block)
        if header is None:
            continue
        lines = block.splitlines()
        status = next((m[1] for m in map(_STATUS.match, lines) if m), None)
        members = tuple(m[1] for m in map(_MEMBER.match, lines) if m)
        states[header[1]] = PortState(
            frozenset(header[2].split(",")), None if status is None else status == "active", members
        )
    return states


def kind_of(interface: str, ports: dict[str, str], bridged: Collection[str] = ()) -> str | None:
    """The kind of an interface, from its port name; ``bridged`` are the members of ``bridge0``.

    The members of ``bridge0`` are Thunderbolt ports whatever the system's language calls them.
    """
    name = ports.get(interface)
    base = interface.rstrip("0123456789")
    fixed = {"lo0": "loopback", "bridge0": "thunderbolt-bridge"}
    if interface in fixed:
        return fixed[interface]
    if base in _TUNNELS:
        return "vpn"
    if base in _VIRTUAL or (name is not None and _TETHERS.search(name)):
        return "virtual"
    if interface in bridged or (name is not None and _THUNDERBOLT_PORT.fullmatch(name)):
        return "thunderbolt"
    if name is None:
        return None
    return "wifi" if name in ("Wi-Fi", "AirPort") else "ethernet"


def thunderbolt_bridge(ifconfig: str) -> BridgeState | None:
    """The state of ``bridge0`` in the output of ``ifconfig``; None where there is no such bridge."""
    states = parse_ifconfig(ifconfig)
    bridge = states.get("bridge0")
    if bridge is None:
        return None
    cabled = tuple(m for m in bridge.members if m in states and states[m].active)
    return BridgeState("bridge0", bridge.members, cabled, "UP" in bridge.flags)


def low_power(pmset: str) -> bool | None:
    """Whether Low Power Mode is on, from ``pmset -g``; None on Macs that don't have it."""
    mode = _LOW_POWER.search(pmset)
    return None if mode is None else mode[1] == "1"


def hardware_ports() -> dict[str, str]:
    """Device -> port name of this Mac; empty where ``networksetup`` doesn't answer."""
    return parse_hardware_ports(run_tool("/usr/sbin/networksetup", "-listallhardwareports"))


def ifconfig() -> str:
    """The output of ``ifconfig`` on this Mac; empty where it doesn't answer."""
    return run_tool("/sbin/ifconfig")


def run_tool(*argv: str) -> str:
    """The standard output of one of the system's tools, in English; empty if it fails or is too slow."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_DEADLINE_S,
            env={**os.environ, "LANG": "C", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
