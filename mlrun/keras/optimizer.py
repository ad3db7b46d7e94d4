"""A Keras optimizer that applies the mean gradient of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.own import own
from mlrun.errors import RequestError
from mlrun.keras.eager import averaged

BUCKET_BYTES = 4 << 20

T = TypeVar("T", bound=Any)


def wrap(optimizer: T, communicator: Communicator | None = None, bucket_bytes: int = BUCKET_BYTES) -> T:
    """The same optimizer, which from now on averages gradients over the ranks before it applies them.

    Works in ``model.fit`` and wherever ``apply`` or ``apply_gradients`` is called. Each rank weighs the same,
    so give all ranks equal batches. Models saved with it name the optimizer's own class and load without
    mlrun. On TensorFlow, buckets travel while the backward pass goes on, and ``jit_compile=True`` can't be
    had: XLA can't compile operations that leave the graph. On PyTorch all travels after the backward pass.

    ``communicator``: by default the group of all ranks of the run that started this script.
    ``bucket_bytes``: how much at least travels together, on TensorFlow.

    Raises:
        RequestError: Keras is on another backend, the optimizer is wrapped already, loss scaling would be
            put around it later, or this process isn't a worker of a run and no communicator is given.
    """
    if getattr(optimizer, "averages_over_ranks", False):
        raise RequestError("this optimizer is wrapped already", fix="call mlrun.keras.wrap once")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales:
        # Keras would look for overflow in a rank's own gradients, and one rank would skip a step alone.
        raise RequestError(
            "with mixed_float16, loss scaling must lie inside of what is wrapped",
            fix="wrap keras.optimizers.LossScaleOptimizer(optimizer)",
        )
    average = _averaging(communicator or own(), bucket_bytes)
    plain: Any = type(optimizer)

    class Averaging(plain):  # type: ignore[misc]
        averages_over_ranks = True

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(average(list(grads)), trainable_variables)

    # A saved model names the class, and must find it where mlrun isn't installed.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Averaging, name, getattr(plain, name))
    optimizer.__class__ = Averaging
    return optimizer


def _averaging(communicator: Communicator, bucket_bytes: int) -> Callable[[list[Any]], list[Any]]:
    backend = keras.backend.backend()
    if backend == "torch":
        return lambda gradients: averaged(communicator, gradients)
    if backend != "tensorflow":
        raise RequestError(
            f"mlrun.keras needs Keras on TensorFlow or PyTorch, and Keras is on {backend}",
            fix="set KERAS_BACKEND=tensorflow or torch before Keras is imported",
        )
    from mlrun.backends.tensorflow.gradients import ReducedGradients  # noqa: PLC0415 - not on other backends

    return ReducedGradients(communicator, bucket_bytes)
