"""What the ranks of these tests do; imports TensorFlow, and so isn't imported by pytest's collection."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mlrun.keras as mk
from mlrun.allreduce.communicator import Communicator
from mlrun.errors import RequestError


def _model(seed: int, policy: str = "float32") -> Any:
    """Images and tokens to 3 classes, through convolutions and an embedding (sparse gradients)."""
    keras.utils.set_random_seed(seed)
    image = keras.Input((8, 8, 1))
    token = keras.Input((4,), dtype="int32")
    seen = keras.layers.Conv2D(4, 3, activation="relu", dtype=policy)(image)
    seen = keras.layers.Flatten(dtype=policy)(seen)
    read = keras.layers.Flatten(dtype=policy)(keras.layers.Embedding(11, 5, dtype=policy)(token))
    both = keras.layers.Concatenate(dtype=policy)([seen, read])
    return keras.Model([image, token], keras.layers.Dense(3, dtype="float32")(both))


def _data(samples: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(5)
    images = draw.standard_normal((samples, 8, 8, 1)).astype(np.float32)
    return images, draw.integers(0, 11, (samples, 4)), draw.integers(0, 3, samples)


def _digest(model: Any) -> str:
    return hashlib.blake2b(b"".join(v.numpy().tobytes() for v in model.weights)).hexdigest()


def updated(
    communicator: Communicator | None, policy: str, bucket_bytes: int
) -> tuple[bool, list[np.ndarray[Any, Any]]]:
    """Weights after one step of plain SGD with rate 1: on the joint batch, or on this rank's half of it.

    Also whether the embedding's gradient was sparse. One variable has no gradient at all.
    """
    model = _model(1, policy)
    unused = keras.Variable(np.ones(3, np.float32), name="unused")
    variables = [*model.trainable_variables, unused]
    optimizer = keras.optimizers.SGD(1.0)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    images, tokens, labels = _data(16)
    own = slice(None)
    if communicator is not None:
        optimizer = mk.wrap(optimizer, communicator, bucket_bytes)
        own = slice(communicator.rank, None, communicator.size)
    optimizer.build(variables)
    sparse = []

    @tf.function
    def step(images: Any, tokens: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
                labels, model([images, tokens], training=True)
            )
            if policy == "mixed_float16":
                loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, [v.value for v in variables])
        sparse.append(any(isinstance(g, tf.IndexedSlices) for g in gradients))
        optimizer.apply(gradients, variables)

    step(images[own], tokens[own], labels[own])
    return sparse[-1], [v.numpy() for v in variables]


def fitted(communicator: Communicator, folder: str) -> str:
    """Hash of the weights after ``fit`` from other weights on each rank; rank 0 saves the model."""
    rank = communicator.rank
    keras.utils.set_random_seed(rank)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        mk.wrap(keras.optimizers.Adam(0.01), communicator),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    images, _, labels = _data(64)
    own = slice(rank, None, communicator.size)
    model.fit(
        images[own],
        labels[own],
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=(images, labels),
        callbacks=[mk.BroadcastCallback(communicator)],
    )
    if rank == 0:
        model.save(Path(folder) / "model.keras")
    return _digest(model)


def wrapping_twice(communicator: Communicator) -> str:
    """What the second call answers."""
    return _refusal(mk.wrap(keras.optimizers.SGD(), communicator), communicator)


def wrapping_within_loss_scaling(communicator: Communicator) -> str:
    """What an optimizer around which Keras would put loss scaling is answered; with it inside it's taken."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mk.wrap(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), communicator)
        return _refusal(keras.optimizers.SGD(), communicator)
    finally:
        keras.config.set_dtype_policy("float32")


def _refusal(optimizer: Any, communicator: Communicator) -> str:
    try:
        mk.wrap(optimizer, communicator)
    except RequestError as error:
        return f"{error} {error.fix}"
    return "taken"
