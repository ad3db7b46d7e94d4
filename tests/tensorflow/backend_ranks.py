"""What the ranks of the backend's tests do; imports TensorFlow only when called."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_fit.py"


def train(communicator: Any, spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train ``steps`` steps and tell all there is to compare."""
    backend = _build(communicator, spec)
    losses, samples = [], []
    for step in range(steps):
        samples.append(backend.step(step).samples)
        assert backend.applied()
        losses.append(backend.loss())
    evaluation = backend.evaluate()
    weights = {v.path: v.numpy() for v in backend._model.weights}
    return {
        "losses": losses,
        "samples": samples,
        "evaluation": evaluation,
        "hash": backend.state_hash(),
        "weights": weights,
        "buckets": sum(span.name.startswith("all_reduce:") for span in backend.spans()),
    }


def train_with_nan_on(communicator: Any, bad_rank: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Two steps, the second of which meets a NaN in ``bad_rank``'s samples."""
    backend = _build(communicator, spec)
    backend.step(0)
    applied = [backend.applied()]
    before = backend.state_hash()
    if communicator.rank == bad_rank:
        read = backend._source.train._read
        backend._source.train._read = lambda *which: (read(*which)[0] * np.nan, read(*which)[1])
        backend._feed._next_step = -1
    backend.step(1)
    applied.append(backend.applied())
    return {
        "applied": applied,
        "culprit": backend.nonfinite(),
        "unchanged": backend.state_hash() == before,
    }


def train_until_aborted(communicator: Any, spec: dict[str, Any]) -> str:
    """The exception that the first step after an abort ends with."""
    backend = _build(communicator, spec)
    backend.step(0)
    if communicator.rank == 1:
        communicator.abort("the test pulled the plug")
    try:
        for step in range(1, 5):
            backend.step(step)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def train_then_alone(communicator: Any, spec: dict[str, Any]) -> list[float]:
    """Three steps together, three on each rank's own."""
    backend = _build(communicator, spec)
    losses = [_loss_of(backend, step) for step in range(3)]
    backend.rebind(None)
    return losses + [_loss_of(backend, step) for step in range(3, 6)]


def read_images(_communicator: Any, spec: dict[str, Any]) -> tuple[list[Any], str]:
    """Targets of the first epoch as read, and the exception once a file is gone."""
    backend = _build(None, spec)
    per_epoch = backend._shape().steps_per_epoch
    targets = [batch.targets.numpy() for step in range(per_epoch) for batch in backend._feed.take(step)]
    Path(spec["data"]["path"], "a", "0.png").write_bytes(b"no image")
    try:
        for step in range(5 * per_epoch, 6 * per_epoch):
            backend.step(step)
    except Exception as error:
        return targets, f"{type(error).__name__}: {error}"
    return targets, "all was read"


def run_example(communicator: Any) -> tuple[float, str]:
    """examples/keras_fit.py as a worker of a run would run it: (accuracy, its last line)."""
    from mlrun.allreduce import own  # noqa: PLC0415

    os.environ |= {"RANK": str(communicator.rank), "WORLD_SIZE": str(communicator.size)}
    sys.argv = [str(EXAMPLE)]
    own.lend(communicator)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            left = runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        own.lend(None)
    return left["accuracy"], printed.getvalue().splitlines()[-1]


def _build(communicator: Any, spec: dict[str, Any]) -> Any:
    from mlrun.backends.tensorflow.backend import TensorFlowBackend  # noqa: PLC0415
    from mlrun.spec import JobSpec  # noqa: PLC0415

    backend = TensorFlowBackend()
    backend.build(JobSpec.model_validate(spec), communicator, 0)
    return backend


def _loss_of(backend: Any, step: int) -> float:
    backend.step(step)
    return float(backend.loss())


def make_tokens_and_images() -> Any:
    """A model of two inputs: images through convolutions, tokens through an embedding (sparse gradients)."""
    import keras  # noqa: PLC0415

    image, token = keras.Input((8, 8, 1)), keras.Input((4,), dtype="int32")
    seen = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    read = keras.layers.Flatten()(keras.layers.Embedding(11, 5)(token))
    return keras.Model((image, token), keras.layers.Dense(3)(keras.layers.Concatenate()([seen, read])))


class TokensAndImages:
    """A dataset of ((image, tokens), class)."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, number: int) -> Any:
        draw = np.random.default_rng(number)
        image = draw.standard_normal((8, 8, 1)).astype(np.float32)
        return (image, draw.integers(0, 11, 4).astype(np.int32)), np.int64(draw.integers(0, 3))
