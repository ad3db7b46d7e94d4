"""Backends by name. Only the chosen one is imported: a framework costs seconds and may not be installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlrun.backends.base import Backend
from mlrun.errors import RequestError


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    class_name: str
    needs: str | None
    """The import that must be installed, and the extra of the same name that installs it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it reads as it is imported; set together, unless the user set one of them."""
    check: tuple[str, str] | None = None
    """A module and a function of it that may refuse, before anything of the framework is imported."""


# PyTorch lets MPS take 1.7 times the recommended memory: a job that is too large would swap, and not fail.
_FAIL_INSTEAD_OF_SWAPPING = {
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "1.0",
    "PYTORCH_MPS_LOW_WATERMARK_RATIO": "0.9",
}

# Two levels of TensorFlow's own log tell of CUDA and of CPU instructions, at every start.
_KERAS_ON_TENSORFLOW = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}

_BACKENDS = {
    "torch": _Entry(
        "mlrun.backends.torch.backend", "TorchBackend", "torch", environment=_FAIL_INSTEAD_OF_SWAPPING
    ),
    "tensorflow": _Entry(
        "mlrun.backends.tensorflow.backend",
        "TensorFlowBackend",
        "tensorflow",
        environment=_KERAS_ON_TENSORFLOW,
        check=("mlrun.backends.tensorflow.plugin", "require_sound_plugin"),
    ),
    "sim": _Entry("mlrun.backends.sim.backend", "SimBackend", None),
}


def create(framework: str) -> Backend:
    """A new, unbuilt Backend of a framework that a spec may name.

    Raises:
        RequestError: it isn't installed.
        RefusedError: what is installed beside it doesn't fit it.
    """
    entry = _BACKENDS[framework]
    if entry.needs is not None and importlib.util.find_spec(entry.needs) is None:
        raise RequestError(
            f"framework {framework!r} needs the package {entry.needs}, which isn't installed here",
            fix=f"pip install 'mlrun-ring[{entry.needs}]'",
        )
    if os.environ.keys().isdisjoint(entry.environment):
        os.environ.update(entry.environment)
    if entry.check is not None:
        getattr(importlib.import_module(entry.check[0]), entry.check[1])()
    backend = getattr(importlib.import_module(entry.module), entry.class_name)()
    assert isinstance(backend, Backend)
    return backend
