"""A model's and an optimizer's tensors on disk, as safetensors; numbers as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mlrun.backends.selected import selected
from mlrun.backends.torch.updates import (
    Updates,
    load_optimizer_tensors,
    optimizer_names,
    optimizer_tensors,
)
from mlrun.errors import RequestError
from mlrun.runs import CHECKPOINTS, latest_checkpoint

MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_NUMBERS = "torch.json"


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name, each storage once."""
    kept = model.state_dict(keep_vars=True).keys()
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items() if name in kept}


def state_hash(model: nn.Module) -> str:
    """Hash over names and bytes of all parameters and saved buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors(model).items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(folder: Path, model: nn.Module, updates: Updates, outputs: int) -> None:
    """Write model, its number of outputs, optimizer and gradient scaler into ``folder``."""
    save_file(_on_host(named_tensors(model)), folder / MODEL)
    save_file(_on_host(optimizer_tensors(updates.optimizer)), folder / _OPTIMIZER)
    numbers = {
        "optimizer": type(updates.optimizer).__name__,
        "outputs": outputs,
        "parameters": optimizer_names(updates.optimizer),
        "scaler": updates.scaler.state_dict(),
    }
    (folder / _NUMBERS).write_text(json.dumps(numbers, indent=1))


def load(folder: Path, model: nn.Module, updates: Updates) -> None:
    """Read what ``save`` wrote.

    Raises:
        RequestError: a file is missing or damaged, or made for another model or optimizer.
    """
    load_model(folder / MODEL, model)
    state = _read(folder / _OPTIMIZER)
    numbers = read_numbers(folder)
    wanted = type(updates.optimizer).__name__
    if numbers["optimizer"] != wanted:
        raise RequestError(
            f"checkpoint {folder} was made with optimizer {numbers['optimizer']}, not {wanted}"
        )
    own = optimizer_names(updates.optimizer)
    if numbers.get("parameters", own) != own:
        raise RequestError(
            f"checkpoint {folder} was made with other parameters trained",
            fix="leave model.freeze and optimizer.no_decay as they were, or start from it with model.weights",
        )
    load_optimizer_tensors(updates.optimizer, state)
    if updates.scaler.is_enabled() and numbers["scaler"]:
        updates.scaler.load_state_dict(numbers["scaler"])


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


def load_model(path: Path, model: nn.Module) -> None:
    """Copy the tensors of ``path`` (a file, or a folder with one) into the model, in place.

    Raises:
        RequestError: unreadable, or names and shapes aren't this model's.
    """
    path = path / MODEL if path.is_dir() else path
    found, own = _read(path), named_tensors(model)
    for name, tensor in own.items():
        if name not in found:
            raise RequestError(f"checkpoint {path} has no tensor {name}: it was made for another model")
        if found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise RequestError(f"checkpoint {path} has {name} of shape {shapes}: made for another model")
    extra = sorted(found.keys() - own.keys())
    if extra:
        raise RequestError(f"checkpoint {path} has a tensor {extra[0]}, which this model lacks")
    for name, tensor in own.items():
        tensor.copy_(found[name])


def load_weights(path: Path, model: nn.Module, fresh: Sequence[str]) -> None:
    """Copy the tensors of ``path`` (a file, a checkpoint's or a run's folder) into the model, in place.

    Tensors that match ``fresh`` stay as they are; what else the file has is left.

    Raises:
        RequestError: unreadable, or a tensor that isn't fresh has no fitting one; all such are named.
    """
    if (path / CHECKPOINTS).is_dir():
        latest = latest_checkpoint(path)
        if latest is None:
            raise RequestError(f"model.weights: the run {path} has no checkpoint", fix="name another run")
        path = latest
    path = path / MODEL if path.is_dir() else path
    found, own = _read(path), named_tensors(model)
    anew = selected(own, fresh, "model.fresh")
    misfits = []
    for name, tensor in own.items():
        if name in anew:
            continue
        if name not in found:
            misfits.append(f"{name} isn't there")
        elif found[name].shape != tensor.shape:
            misfits.append(f"{name} is {tuple(found[name].shape)}, not {tuple(tensor.shape)}")
    if misfits:
        more = f" and {len(misfits) - 8} more" if len(misfits) > 8 else ""
        raise RequestError(
            f"model.weights: {len(misfits)} of {len(own)} tensors don't fit {path}: "
            + "; ".join(misfits[:8])
            + more,
            fix="name those that are to start anew under model.fresh, or take the model of that run",
        )
    for name in own.keys() - anew:
        own[name].copy_(found[name])


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RequestError(f"checkpoint {path} can't be read: {error}") from error


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
