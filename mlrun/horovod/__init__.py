"""Stands in for Horovod: its API over mlrun's Communicator. The wording of the API is Horovod's."""

from __future__ import annotations

import sys
from pathlib import Path

MODULES = Path(__file__).with_name("modules")
"""A folder with packages by Horovod's names, in front of ``sys.path`` for scripts that import them."""


def install() -> None:
    """From now on ``import horovod`` finds the stand-in, here and in processes that this one spawns."""
    sys.path.insert(0, str(MODULES))
