"""A model's and an optimizer's variables on disk, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mlrun.errors import RequestError

MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_NUMBERS = "tensorflow.json"


def named(variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by their path with dots; a path that comes again has its number behind it."""
    found: dict[str, Any] = {}
    for variable in variables:
        name = path = variable.path.replace("/", ".")
        times = 1
        while name in found:
            times += 1
            name = f"{path}#{times}"
        found[name] = variable
    return found


def state_hash(model: Any) -> str:
    """Hash over names and bytes of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, variable in named(model.weights).items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()


def save(folder: Path, model: Any, optimizer: Any, sample_shape: Sequence[int], outputs: int) -> None:
    """Write weights, optimizer, and what the model was made for, into ``folder``."""
    save_file(_values(model.weights), folder / MODEL)
    save_file(_values(optimizer.variables), folder / _OPTIMIZER)
    numbers = {"sample_shape": list(sample_shape), "outputs": outputs}
    (folder / _NUMBERS).write_text(json.dumps(numbers, indent=1))


def load(folder: Path, model: Any, optimizer: Any) -> None:
    """Read what ``save`` wrote.

    Raises:
        RequestError: a file is missing or damaged, or made for another model or optimizer.
    """
    _assign(folder / MODEL, model.weights, "model")
    _assign(folder / _OPTIMIZER, optimizer.variables, "optimizer")


def read_numbers(folder: Path) -> dict[str, Any]:
    """What ``save`` wrote that isn't a tensor.

    Raises:
        RequestError: missing or damaged.
    """
    try:
        numbers: dict[str, Any] = json.loads((folder / _NUMBERS).read_text())
    except (OSError, ValueError) as error:
        raise RequestError(f"checkpoint {folder / _NUMBERS} can't be read: {error}") from error
    return numbers


def load_weights(path: Path, model: Any) -> None:
    """The weights of ``path``, a file or a checkpoint's folder.

    Raises:
        RequestError: unreadable, or made for another model.
    """
    _assign(path / MODEL if path.is_dir() else path, model.weights, "model")


def _values(variables: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.array(variable.numpy(), order="C") for name, variable in named(variables).items()}


def _assign(path: Path, variables: Sequence[Any], what: str) -> None:
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RequestError(f"checkpoint {path} can't be read: {error}") from error
    own = named(variables)
    for name, variable in own.items():
        if name not in found:
            raise RequestError(f"checkpoint {path} has no tensor {name}: it was made for another {what}")
        if found[name].shape != tuple(variable.shape):
            shapes = f"{found[name].shape}, not {tuple(variable.shape)}"
            raise RequestError(f"checkpoint {path} has {name} of shape {shapes}: made for another {what}")
    extra = sorted(found.keys() - own.keys())
    if extra:
        raise RequestError(f"checkpoint {path} has a tensor {extra[0]}, which this {what} lacks")
    for name, variable in own.items():
        variable.assign(found[name])
