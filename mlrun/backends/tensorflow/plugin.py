"""Whether TensorFlow can be imported here at all: asked before it is."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from mlrun.errors import RefusedError
from mlrun.probe.metal_plugins import installed, refusal
from mlrun.probe.versions import versions

_IMPORT_TIMEOUT_S = 180.0


def require_sound_plugin() -> None:
    """Where a plug-in for the GPU is installed, check that it fits, and that TensorFlow starts with it.

    In a process of its own: a plug-in that doesn't fit raises in ``import tensorflow``, or aborts.

    Raises:
        RefusedError: it doesn't fit, as far as is known, or TensorFlow doesn't start.
    """
    found = versions()
    plugins = installed(found)
    if not plugins:
        return
    refused = refusal(found, platform.python_version(), platform.mac_ver()[0] or "0", os.environ)
    if refused is not None:
        raise RefusedError(refused[0], fix=refused[1])
    try:
        child = subprocess.run(
            [sys.executable, "-c", "import tensorflow"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(
            f"import tensorflow with {plugins[0]} hasn't ended for {_IMPORT_TIMEOUT_S:.0f} s",
            fix=f"pip uninstall {plugins[0].split()[0]}, to train on the CPU",
        ) from None
    if child.returncode:
        words = [line for line in child.stderr.splitlines() if line.strip()]
        ended = f"ended with {child.returncode}" if child.returncode > 0 else "was killed by a signal"
        raise RefusedError(
            f"import tensorflow with {plugins[0]} {ended}: {words[-1] if words else 'without a word'}",
            fix=f"pip uninstall {plugins[0].split()[0]}, or a combination from docs/tensorflow-metal.md",
        )
