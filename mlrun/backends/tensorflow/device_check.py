"""Whether a GPU trains as the CPU does: the same small model for some steps on both, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from mlrun.errors import RefusedError

STEPS = 20
TOLERANCE = 0.02
"""Largest distance of a loss from the CPU's, relative to the CPU's first one."""

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True, slots=True)
class Finding:
    """One optimizer's training; losses per step on the CPU and on the device, and what went wrong there."""

    optimizer: str
    expected: list[float]
    losses: list[float]
    problem: str | None = None

    @property
    def difference(self) -> float:
        """Of the worst step; infinite where a loss isn't finite, or none was made."""
        if len(self.losses) != len(self.expected) or not np.isfinite(self.losses).all():
            return float("inf")
        distances = np.abs(np.subtract(self.losses, self.expected))
        return float(distances.max() / abs(self.expected[0]))

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{STEPS} steps with {self.optimizer}: {self.problem}"
        return (
            f"{STEPS} steps with {self.optimizer}: the loss goes from {self.expected[0]:.3f} to "
            f"{self.expected[-1]:.3f} on the CPU and to {self.losses[-1]:.3f} on the device; the worst step "
            f"differs by {self.difference:.1e} (allowed {TOLERANCE:.0e})"
        )


def device_check(device: str) -> list[Finding]:
    """Train on TensorFlow's ``device`` (``/GPU:0``) and on the CPU, with each optimizer. Some seconds."""
    return [_compare(name, device) for name in OPTIMIZERS]


def require_agreement(device: str) -> None:
    """
    Raises:
        RefusedError: a training on ``device`` isn't the CPU's.
    """
    wrong = [finding for finding in device_check(device) if not finding.agrees]
    if wrong:
        raise RefusedError(
            "the GPU doesn't train as the CPU does: " + "; ".join(map(str, wrong)),
            fix="set device: cpu, or framework: torch",
        )


def _compare(optimizer: str, device: str) -> Finding:
    expected = losses(optimizer, "/CPU:0")
    try:
        return Finding(optimizer, expected, losses(optimizer, device))
    except (tf.errors.OpError, ValueError) as error:
        return Finding(optimizer, expected, [], str(error).splitlines()[0])


def losses(optimizer: str, device: str) -> list[float]:
    """Of ``STEPS`` steps of a small convolutional network; its weights and data are made on the CPU."""
    draw = np.random.default_rng(0)
    images = draw.standard_normal((64, 12, 12, 3)).astype(np.float32)
    labels = (images.mean(axis=(1, 2)).argmax(axis=1)).astype(np.int64)
    with tf.device("/CPU:0"):
        weights = _model().get_weights()
    with tf.device(device):
        model = _model()
        model.set_weights(weights)
        update = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.01}})
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function  # type: ignore[untyped-decorator]
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(images, training=True))
            update.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]))
            return loss

        update.build(model.trainable_variables)
        return [float(step()) for _ in range(STEPS)]


def _model() -> keras.Model:
    initial = keras.initializers.GlorotUniform(seed=1)
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            keras.layers.Conv2D(8, 3, activation="relu", kernel_initializer=initial),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="tanh", kernel_initializer=initial),
            keras.layers.Dense(3, kernel_initializer=initial),
        ]
    )
