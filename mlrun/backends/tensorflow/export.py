"""A checkpoint's model in a form that others read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mlrun.backends.tensorflow import checkpoint
from mlrun.backends.tensorflow.models import Sizes, make_model
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

_KERAS = "model.keras"


def export_safetensors(_spec: JobSpec, folder: Path, out: Path) -> None:
    """Copy the tensors of the checkpoint ``folder`` into ``out``, by their names in the model.

    Raises:
        RequestError: there are none, or ``out`` can't be written.
    """
    try:
        shutil.copy(folder / checkpoint.MODEL, out / checkpoint.MODEL)
    except OSError as error:
        raise RequestError(f"{folder} can't be exported to {out}: {error.strerror}") from error


def export_keras(spec: JobSpec, folder: Path, out: Path) -> None:
    """Write the model of the checkpoint ``folder`` into ``out`` as one file that Keras reads without mlrun.

    Raises:
        RequestError: the checkpoint doesn't fit the spec, or Keras can't write such a model.
    """
    numbers = checkpoint.read_numbers(folder)
    model = make_model(spec, Sizes(tuple(numbers["sample_shape"]), numbers["outputs"]))
    if not model.built:
        model.build((None, *numbers["sample_shape"]))
    checkpoint.load_weights(folder, model)
    try:
        model.save(out / _KERAS)
    except (NotImplementedError, TypeError, ValueError, OSError) as error:
        raise RequestError(
            f"Keras can't write {spec.model.name}: {str(error).splitlines()[0]}",
            fix="use --format safetensors",
        ) from error


WRITERS: dict[str, Callable[[JobSpec, Path, Path], None]] = {
    "safetensors": export_safetensors,
    "keras": export_keras,
}
"""Format -> writer(spec, checkpoint's folder, where to)."""


def loading_lines(out: Path, kind: str) -> tuple[str, str]:
    """The two lines of Python that load what was exported."""
    if kind == "keras":
        return ("import keras", f"model = keras.models.load_model({json.dumps(str(out / _KERAS))})")
    return (
        "from safetensors.numpy import load_file",
        f"tensors = load_file({json.dumps(str(out / checkpoint.MODEL))})",
    )
