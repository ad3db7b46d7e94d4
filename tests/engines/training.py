"""What the ranks of the engine matrix do: 20 steps on a model of fixed weights and data."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Communicator

STEPS = 20

Parameters = list[list[float]]


def torch(communicator: Communicator) -> Parameters:
    """Through the backend of ``framework: torch``."""
    from safetensors.numpy import load  # noqa: PLC0415

    from tests.backends.torch_ranks import train  # noqa: PLC0415

    spec: dict[str, Any] = {
        "name": "matrix",
        "model": {"name": "mlp", "args": {"hidden": [16]}},
        "data": {"source": "synthetic", "samples": 64, "image_size": 8, "classes": 3, "workers": 0},
        "global_batch_size": 16,
        "steps": STEPS,
        "device": "cpu",
        "threads": 1,
    }
    tensors = load(train(communicator, spec, STEPS)["model"])
    return [tensors[name].flatten().tolist() for name in sorted(tensors)]


def tensorflow(communicator: Communicator) -> Parameters:
    """Through ``mlrun.keras``."""
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    import mlrun.keras as mk  # noqa: PLC0415

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])
    optimizer = mk.wrap(keras.optimizers.SGD(0.1, momentum=0.9), communicator)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    draw = np.random.default_rng(1)
    inputs = draw.standard_normal((64, 8)).astype(np.float32)
    targets = draw.integers(0, 3, 64)

    @tf.function
    def step(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for number in range(STEPS):
        own = (np.arange(8) * communicator.size + communicator.rank + 16 * number) % 64
        step(inputs[own], targets[own])
    return [v.numpy().flatten().tolist() for v in model.weights]
