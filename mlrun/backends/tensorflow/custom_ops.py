"""How TensorFlow's custom operations are compiled and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def flags() -> list[str]:
    """For the compiler, against the installed TensorFlow."""
    given: list[str] = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    return given


def load(path: Path) -> Any:
    """A module with a function for each of its operations."""
    return tf.load_op_library(str(path))
