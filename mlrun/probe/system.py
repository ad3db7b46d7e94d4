"""The facts about a host that every run records. None where the system doesn't tell."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import psutil


def facts() -> dict[str, Any]:
    """Operating system, machine, Python, usable cores, memory in bytes, virtual machine or not."""
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "machine": platform.machine(),
        "chip": _sysctl("machdep.cpu.brand_string"),
        "python": platform.python_version(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "virtual_machine": _virtual_machine(),
    }


def usable_cores() -> int:
    """Cores this process may run on, which a container or ``taskset`` may have made fewer."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _virtual_machine() -> bool | None:
    """True in a macOS guest, whose GPU is advertised but doesn't train. Unknown on other systems."""
    answer = _sysctl("kern.hv_vmm_present")
    return None if answer is None else answer == "1"


def _sysctl(name: str) -> str | None:
    if sys.platform != "darwin":
        return None
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
