"""Averages gradients over the ranks between the backward pass and the update, without a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, Op


def averaged(communicator: Communicator, gradients: Sequence[Any]) -> list[Any]:
    """The gradients' means over all ranks; None stays None, and must be None on every rank."""
    present = [number for number, gradient in enumerate(gradients) if gradient is not None]
    own = [keras.ops.convert_to_numpy(gradients[number]) for number in present]
    result = list(gradients)
    if not own:
        return result
    flat = np.concatenate([array.astype(np.float32).reshape(-1) for array in own])
    communicator.all_reduce(Buffer.of(flat), Op.AVERAGE, name="gradients").wait()
    parts = np.split(flat, np.cumsum([array.size for array in own])[:-1])
    for number, array, part in zip(present, own, parts, strict=True):
        mean = part.reshape(array.shape).astype(array.dtype)
        result[number] = keras.ops.convert_to_tensor(mean, dtype=gradients[number].dtype)
    return result
