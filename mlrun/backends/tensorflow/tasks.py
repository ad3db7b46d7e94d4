"""The tasks' losses and metrics in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mlrun.backends.tasks import Measure, Task, task_of
from mlrun.errors import RequestError
from mlrun.spec import JobSpec


def make_task(spec: JobSpec) -> Task:
    """The spec's task.

    Raises:
        RequestError: a callable it names doesn't exist.
    """
    regression = Task("samples", _squared_error, {"mae": _absolute_error})
    return task_of(spec, _checked, regression, Task("images", _entropy, {"accuracy": _correct}))


def _checked(callable_: Measure, what: str, kind: str) -> Measure:
    def measure(outputs: Any, targets: Any) -> Any:
        value = tf.cast(callable_(outputs, targets), tf.float32)
        if value.shape.num_elements() != 1:
            raise RequestError(
                f"{what} gave shape {value.shape}, not one number", fix=f"return the {kind} over the batch"
            )
        return tf.reshape(value, [])

    return measure


def _entropy(outputs: Any, targets: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))


def _correct(outputs: Any, targets: Any) -> Any:
    hits = tf.argmax(outputs, axis=1, output_type=targets.dtype) == targets
    return tf.reduce_sum(tf.cast(hits, tf.float32))


def _squared_error(outputs: Any, targets: Any) -> Any:
    return tf.reduce_mean(tf.square(outputs - tf.reshape(targets, tf.shape(outputs))))


def _absolute_error(outputs: Any, targets: Any) -> Any:
    """Summed over samples, averaged over what one sample predicts."""
    errors = tf.abs(outputs - tf.reshape(targets, tf.shape(outputs)))
    return tf.reduce_sum(tf.reduce_mean(tf.reshape(errors, [tf.shape(errors)[0], -1]), axis=1))
