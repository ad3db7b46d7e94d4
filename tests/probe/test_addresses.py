"""Addresses with their kind, on this machine and on the shapes that Linux's /sys takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlrun.probe.addresses import Address, addresses, linux_kind


def test_loopback_is_found_on_every_machine() -> None:
    found = [a for a in addresses() if a.address == "127.0.0.1"]
    assert len(found) == 1
    assert found[0].kind == "loopback"
    assert found[0].prefix_length == 8
    assert found[0].up


def test_link_local_addresses_carry_their_scope() -> None:
    for address in addresses():
        assert isinstance(address, Address)
        if address.address.startswith("fe80"):
            assert address.address.endswith(f"%{address.interface}")


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"type": "772"}, "loopback"),
        ({"type": "1", "wireless/": "", "device/": ""}, "wifi"),
        ({"type": "65534", "tun_flags": "0x1001"}, "vpn"),
        ({"type": "1", "device/": "", "ifindex": "2", "iflink": "2"}, "ethernet"),
        ({"type": "1", "ifindex": "2", "iflink": "7"}, "ethernet"),
        ({"type": "1", "ifindex": "9", "iflink": "2", "lower_eth0/": ""}, "virtual"),
        ({"type": "1", "ifindex": "3", "iflink": "3", "bridge/": ""}, "virtual"),
        ({}, None),
    ],
)
def test_linux_kinds(tmp_path: Path, files: dict[str, str], kind: str | None) -> None:
    folder = tmp_path / "net0"
    folder.mkdir()
    for name, text in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_text(f"{text}\n")
    assert linux_kind("net0", tmp_path) == kind


def test_thunderbolt_is_known_by_its_driver(tmp_path: Path) -> None:
    driver = tmp_path / "drivers" / "thunderbolt-net"
    driver.mkdir(parents=True)
    device = tmp_path / "thunderbolt0" / "device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(driver)
    (tmp_path / "thunderbolt0" / "type").write_text("1\n")
    assert linux_kind("thunderbolt0", tmp_path) == "thunderbolt"
