"""Which mlrun and which frameworks a host has, without importing any of them."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlrun

FRAMEWORKS = (
    "torch",
    "torchvision",
    "transformers",
    "tensorflow",
    "tensorflow-metal",
    "tensorflow-metal-plugin",
    "keras",
    "numpy",
    "mpi4py",
    "horovod",
)

_OTHER_NAMES = {"tensorflow": ("tensorflow-cpu", "tensorflow-macos")}
"""Distributions that bring the same package."""


def versions() -> dict[str, str | None]:
    """Distribution -> installed version, None where it isn't installed; ``mlrun`` among them."""
    return {"mlrun": mlrun.__version__, **{name: _version(name) for name in FRAMEWORKS}}


@functools.cache
def build() -> str:
    """The first 12 hex digits of a hash of mlrun's Python sources: tells apart builds of one version."""
    root = Path(mlrun.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _version(name: str) -> str | None:
    found = (_installed(distribution) for distribution in (name, *_OTHER_NAMES.get(name, ())))
    return next((version for version in found if version is not None), None)


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
