"""A Keras optimizer that applies the mean gradient of all ranks."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from mlrun.allreduce.communicator import Communicator
from mlrun.errors import RequestError

BUCKET_BYTES = 4 << 20

T = TypeVar("T", bound=Any)


def wrap(optimizer: T, communicator: Communicator, bucket_bytes: int = BUCKET_BYTES) -> T:
    """The same optimizer, which from now on averages gradients over the ranks before it applies them.

    Works in ``model.fit`` and wherever ``apply`` or ``apply_gradients`` is called. Each rank weighs the same,
    so give all ranks equal batches. Models saved with it name the optimizer's own class and load without
    mlrun. ``jit_compile=True`` can't be had: XLA can't compile operations that leave the graph.

    ``bucket_bytes``: how much at least travels together.

    Raises:
        RequestError: Keras isn't on TensorFlow, the optimizer is wrapped already, or loss scaling would be
            put around it later.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RequestError(
            f"mlrun.keras needs Keras on TensorFlow, and Keras is on {backend}",
            fix="set KERAS_BACKEND=tensorflow before Keras is imported",
        )
    if getattr(optimizer, "averages_over_ranks", False):
        raise RequestError("this optimizer is wrapped already", fix="call mlrun.keras.wrap once")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales:
        # Keras would look for overflow in a rank's own gradients, and one rank would skip a step alone.
        raise RequestError(
            "with mixed_float16, loss scaling must lie inside of what is wrapped",
            fix="wrap keras.optimizers.LossScaleOptimizer(optimizer)",
        )
    from mlrun.backends.tensorflow.gradients import ReducedGradients  # noqa: PLC0415 - not on other backends

    average = ReducedGradients(communicator, bucket_bytes)
    own: Any = type(optimizer)

    class Averaging(own):  # type: ignore[misc]
        averages_over_ranks = True

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(average(list(grads)), trainable_variables)

    # A saved model names the class, and must find it where mlrun isn't installed.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Averaging, name, getattr(own, name))
    optimizer.__class__ = Averaging
    return optimizer
