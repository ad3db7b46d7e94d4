"""What ranks do with Keras on PyTorch; Keras is imported only when called."""

from __future__ import annotations

from typing import Any

import numpy as np


def fit(communicator: Any) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Keras' backend, and the weights after an epoch of ``fit`` on the joint batches, or this rank's half."""
    import keras  # noqa: PLC0415

    import mlrun.keras as mk  # noqa: PLC0415

    draw = np.random.default_rng(5)
    inputs, labels = draw.standard_normal((32, 6)).astype(np.float32), draw.integers(0, 3, 32)
    keras.utils.set_random_seed(1 if communicator is None else communicator.rank + 1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    callbacks, own, size = [], slice(None), 1
    if communicator is not None:
        mk.wrap(optimizer, communicator)
        callbacks = [mk.BroadcastCallback(communicator)]
        own, size = slice(communicator.rank, None, communicator.size), communicator.size
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs[own], labels[own], batch_size=8 // size, shuffle=False, verbose=0, callbacks=callbacks)
    return keras.backend.backend(), model.get_weights()
