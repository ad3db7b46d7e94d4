"""One optimizer step as TensorFlow's graph: forward, backward, reduction and update."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mlrun.backends.tasks import Task
from mlrun.backends.tensorflow.data import Batch
from mlrun.backends.tensorflow.gradients import ReducedGradients


class Training:
    """Steps of one model in one membership.

    Losses are weighted before, so that the sum of gradients over micro-batches and ranks is that of the mean
    over all samples. XLA stays off: it can't compile operations that leave the graph for the ring.
    """

    def __init__(
        self, model: Any, task: Task, optimizer: Any, reduced: ReducedGradients | None, *, checked: bool
    ) -> None:
        self._model = model
        self._task = task
        self._optimizer = optimizer
        self._reduced = reduced
        self._checked = checked
        self._sums: list[Any] = []
        self._scale = getattr(optimizer, "scale_loss", lambda loss: loss)
        self._local = tf.function(self._accumulate, reduce_retracing=True, jit_compile=False)
        self._last = tf.function(self._step, reduce_retracing=True, jit_compile=False)
        self.forward_until: float | None = None
        """When the last forward pass ended."""

    def step(self, batches: Sequence[Batch], samples: int) -> tuple[float, bool]:
        """(loss summed over this rank's samples, whether the update was made); ``samples``: of all ranks."""
        loss = 0.0
        for number, batch in enumerate(batches[:-1]):
            own = self._local(batch.inputs, batch.targets, _weight(batch, samples), number == 0)
            loss += float(own) * batch.count
        last = batches[-1]
        own, applied = self._last(last.inputs, last.targets, _weight(last, samples), len(batches) > 1, True)
        return loss + float(own) * last.count, bool(applied)

    def step_without_samples(self, zeros: Batch) -> bool:
        """Take part with a pass of weight 0, in evaluation mode: no running statistics see the zeros."""
        _, applied = self._last(zeros.inputs, zeros.targets, tf.constant(0.0), False, False)
        return bool(applied)

    def first_nonfinite(self, batches: Sequence[Batch]) -> str | None:
        """What of this rank's own batches isn't finite."""
        for batch in batches:
            loss, gradients = self._gradients(batch.inputs, batch.targets, _weight(batch, batch.count), True)
            if not np.isfinite(float(loss)):
                return "loss"
            for variable, gradient in zip(self._model.trainable_variables, gradients, strict=True):
                if gradient is not None and not bool(_finite([gradient])):
                    return f"gradient of {variable.path}"
        return None

    def _gradients(self, inputs: Any, targets: Any, weight: Any, training: bool) -> tuple[Any, list[Any]]:
        variables = [v.value for v in self._model.trainable_variables]
        with tf.GradientTape() as tape:
            loss = self._task.loss(_plain(self._model(inputs, training=training)), targets)
            penalty = tf.add_n(self._model.losses) if self._model.losses else 0.0
            weighted = self._scale((loss + penalty) * weight)
        tf.numpy_function(self._note_forward, [loss], tf.int64)
        found = tape.gradient(weighted, variables)
        # Dense on one rank too: sparse gradients of a token that comes twice have another norm.
        return loss, [None if each is None else tf.convert_to_tensor(each) for each in found]

    def _note_forward(self, _loss: Any) -> Any:
        self.forward_until = time.monotonic()
        return np.int64(0)

    def _accumulate(self, inputs: Any, targets: Any, weight: Any, first: bool) -> Any:
        loss, gradients = self._gradients(inputs, targets, weight, True)
        if not self._sums:
            with tf.init_scope():
                self._sums = [tf.Variable(tf.zeros_like(v.value)) for v in self._model.trainable_variables]
        for kept, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                kept.assign(gradient) if first else kept.assign_add(gradient)
        return loss

    def _step(
        self, inputs: Any, targets: Any, weight: Any, accumulated: bool, training: bool
    ) -> tuple[Any, Any]:
        loss, gradients = self._gradients(inputs, targets, weight, training)
        if accumulated:
            pairs = zip(gradients, self._sums, strict=True)
            gradients = [None if g is None else g + kept for g, kept in pairs]
        if self._reduced is not None:
            gradients = self._reduced(gradients)
        return loss, self._apply(gradients)

    def _apply(self, gradients: list[Any]) -> Any:
        """Update, unless the gradient isn't finite; loss scaling looks for that by itself."""
        pairs = [
            (g, v) for g, v in zip(gradients, self._model.trainable_variables, strict=True) if g is not None
        ]
        found, variables = [g for g, _ in pairs], [v for _, v in pairs]

        def update() -> Any:
            self._optimizer.apply(found, variables)
            return tf.constant(True)

        return tf.cond(_finite(found), update, lambda: tf.constant(False)) if self._checked else update()


def evaluation(model: Any, measures: Sequence[Callable[[Any, Any], Any]]) -> Any:
    """A function of (inputs, targets) that gives each measure of the model's outputs, as one tensor."""

    def measured(inputs: Any, targets: Any) -> Any:
        outputs = _plain(model(inputs, training=False))
        return tf.stack([tf.cast(measure(outputs, targets), tf.float32) for measure in measures])

    return tf.function(measured, reduce_retracing=True, jit_compile=False)


def _weight(batch: Batch, samples: int) -> Any:
    return tf.constant(batch.count / samples, tf.float32)


def _plain(outputs: Any) -> Any:
    """Losses are computed in float32, whatever the layers' format."""
    return tf.cast(outputs, tf.float32)


def _finite(gradients: Sequence[Any]) -> Any:
    return tf.math.is_finite(tf.linalg.global_norm(gradients))
