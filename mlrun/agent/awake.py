"""No sleep under a run that nobody touches."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress


def keep_awake() -> None:
    """Keep this Mac awake for as long as this process lives; elsewhere nothing."""
    if sys.platform == "darwin":
        with suppress(OSError):
            subprocess.Popen(
                ["/usr/bin/caffeinate", "-ims", "-w", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
