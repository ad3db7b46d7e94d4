"""Parsers of macOS's network tools, on short outputs with the traps that real ones have."""

from __future__ import annotations

import pytest

from mlrun.probe.macos import BridgeState, kind_of, parse_hardware_ports, parse_ifconfig, thunderbolt_bridge

PORTS = """
Hardware Port: Ethernet Adapter (en3)
Device: en3
Ethernet Address: 02:00:00:00:00:04

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en10
Ethernet Address: 02:00:00:00:00:09 

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 02:00:00:00:00:01

Hardware Port: iPhone USB
Device: en37

Hardware Port: Wi-Fi
Device: en0

Hardware Port: Thunderbolt 2
Device: en6
Ethernet Address: 02:00:00:00:00:02

Hardware Port: Nothing behind it
Device:

VLAN Configurations
===================
"""

IFCONFIG = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
gif0: flags=8010<POINTOPOINT,MULTICAST> mtu 1280
en1: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:01
\tmedia: autoselect <full-duplex>
\tstatus: active
en6: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tstatus: active
en2: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tConfiguration:
\t\tmaxage 0 holdcnt 0 proto stp maxaddr 100 timeout 1200
\tmember: en1 flags=3<LEARNING,DISCOVER>
\t        ifmaxaddr 0 port 10 priority 0 path cost 0
\tmember: en6 flags=3<LEARNING,DISCOVER>
\tmember: en2 flags=3<LEARNING,DISCOVER>
\tmember: en9 flags=3<LEARNING,DISCOVER>
\tstatus: active
ib0: flags=4099<UP,BROADCAST,MULTICAST>  mtu 4092
        infiniband 80:00:02  txqueuelen 256  (InfiniBand)
utun0: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1500
"""


def test_ports_are_listed_by_device() -> None:
    assert parse_hardware_ports(PORTS) == {
        "en3": "Ethernet Adapter (en3)",
        "en10": "Thunderbolt Ethernet Slot 1",
        "bridge0": "Thunderbolt Bridge",
        "en37": "iPhone USB",
        "en0": "Wi-Fi",
        "en6": "Thunderbolt 2",
    }


@pytest.mark.parametrize(
    ("interface", "kind"),
    [
        ("en6", "thunderbolt"),
        ("bridge0", "thunderbolt-bridge"),
        ("en10", "ethernet"),
        ("en3", "ethernet"),
        ("en0", "wifi"),
        ("en37", "virtual"),
        ("lo0", "loopback"),
        ("utun3", "vpn"),
        ("awdl0", "virtual"),
        ("bridge100", "virtual"),
        ("en99", None),
    ],
)
def test_kinds(interface: str, kind: str | None) -> None:
    assert kind_of(interface, parse_hardware_ports(PORTS)) == kind


def test_members_of_the_bridge_are_thunderbolt_in_any_language() -> None:
    assert kind_of("en2", {"en2": "雷雳 1"}, bridged=("en2",)) == "thunderbolt"


def test_interface_states() -> None:
    states = parse_ifconfig(IFCONFIG)
    assert list(states) == ["lo0", "gif0", "en1", "en6", "en2", "bridge0", "ib0", "utun0"]
    assert [states[name].active for name in ("en1", "en2", "utun0")] == [True, False, None]
    assert "UP" not in states["gif0"].flags


def test_bridge_tells_which_members_have_a_cable() -> None:
    assert thunderbolt_bridge(IFCONFIG) == BridgeState(
        "bridge0", ("en1", "en6", "en2", "en9"), ("en1", "en6"), True
    )
    assert thunderbolt_bridge(IFCONFIG.partition("bridge0")[0]) is None


@pytest.mark.parametrize("length", range(0, len(IFCONFIG), 97))
def test_cut_output_gives_less_and_never_fails(length: int) -> None:
    whole = parse_ifconfig(IFCONFIG)
    for name, state in parse_ifconfig(IFCONFIG[:length]).items():
        assert set(state.members) <= {*whole[name].members, *("e", "en")}
