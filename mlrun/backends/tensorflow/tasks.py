"""What is learnt: the loss of a batch, its metrics, and what one sample is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from mlrun.backends.resolve import resolve
from mlrun.errors import RequestError
from mlrun.spec import JobSpec
from mlrun.spec.training import TaskBlock

Measure = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Task:
    """``loss`` is the mean over a batch, each metric the sum over a batch; both of (outputs, targets)."""

    unit: str
    loss: Measure
    metrics: Mapping[str, Measure] = field(default_factory=dict)


def make_task(spec: JobSpec) -> Task:
    """The spec's task.

    Raises:
        RequestError: a callable it names doesn't exist.
    """
    task = spec.task
    if isinstance(task, TaskBlock):
        metrics = {
            name: _own(reference, spec.workdir, f"task.metrics.{name}", "sum")
            for name, reference in task.metrics.items()
        }
        return Task(task.unit, _own(task.loss, spec.workdir, "task.loss", "mean"), metrics)
    if task == "regression":
        return Task("samples", _squared_error, {"mae": _absolute_error})
    return Task("images" if task == "image-classification" else "sequences", _entropy, {"accuracy": _correct})


def _own(reference: str, workdir: str | None, key: str, kind: str) -> Measure:
    """The user's callable, held to giving one number: the ``kind`` over the batch."""
    callable_ = resolve(reference, workdir, key)

    def measure(outputs: Any, targets: Any) -> Any:
        value = tf.cast(callable_(outputs, targets), tf.float32)
        if value.shape.num_elements() != 1:
            raise RequestError(
                f"{key}: {reference} gave shape {value.shape}, not one number",
                fix=f"return the {kind} over the batch",
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
