"""The facts about a host that every run records. None where the system doesn't tell."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mlrun.probe.addresses import addresses
from mlrun.probe.macos import ifconfig, low_power, run_tool, thunderbolt_bridge
from mlrun.probe.versions import build, versions


def facts() -> dict[str, Any]:
    """Operating system, machine, cores, memory and free disk in bytes, versions, and where it is reached."""
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "machine": platform.machine(),
        "chip": _chip(),
        "python": platform.python_version(),
        "build": build(),
        "versions": versions(),
        "cores": usable_cores(),
        "disk_free_bytes": _disk_free_bytes(),
        "memory_bytes": psutil.virtual_memory().total,
        "virtual_machine": _virtual_machine(),
        "on_battery": _on_battery(),
        "low_power": low_power(run_tool("/usr/bin/pmset", "-g")) if sys.platform == "darwin" else None,
        "automatic_updates": _automatic_updates(),
        "addresses": [dataclasses.asdict(address) for address in addresses()],
        "thunderbolt_bridge": _thunderbolt_bridge(),
    }


def usable_cores() -> int:
    """Cores this process may run on, which a container or ``taskset`` may have made fewer."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _chip() -> str | None:
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return None


def _disk_free_bytes() -> int | None:
    """Where code and run folders lie on a host: in the user's home."""
    try:
        return shutil.disk_usage(Path.home()).free
    except (OSError, RuntimeError):
        return None


def _on_battery() -> bool | None:
    """Whether the battery feeds this machine; None where there is none, or nobody knows."""
    battery = _battery()
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def is_portable() -> bool:
    """Whether this machine has a battery, and so most likely a lid."""
    return _battery() is not None


def _battery() -> Any:
    return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None


def _automatic_updates() -> bool | None:
    """Whether this Mac installs new versions of macOS by itself."""
    if sys.platform != "darwin":
        return None
    domain = "/Library/Preferences/com.apple.SoftwareUpdate"
    answer = run_tool("/usr/bin/defaults", "read", domain, "AutomaticallyInstallMacOSUpdates").strip()
    return {"1": True, "0": False}.get(answer)


def _thunderbolt_bridge() -> dict[str, Any] | None:
    """The bridge of this Mac's Thunderbolt ports; None on other systems and where there is none."""
    bridge = thunderbolt_bridge(ifconfig()) if sys.platform == "darwin" else None
    return None if bridge is None else dataclasses.asdict(bridge)


def _virtual_machine() -> bool | None:
    """True in a macOS guest, whose GPU is advertised but doesn't train. Unknown on other systems."""
    answer = _sysctl("kern.hv_vmm_present")
    return None if answer is None else answer == "1"


def _sysctl(name: str) -> str | None:
    if sys.platform != "darwin":
        return None
    return run_tool("/usr/sbin/sysctl", "-n", name).strip() or None
