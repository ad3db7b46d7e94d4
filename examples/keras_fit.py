"""Keras' own ``model.fit`` on handwritten digits, on every worker: mlrun launch examples/keras_fit.py -np 2

Four lines are mlrun's. Each worker trains on its own samples, and all of them on the mean gradient.
"""

import os

import keras
import numpy as np
from sklearn.datasets import load_digits

import mlrun.keras as mk

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
keras.utils.set_random_seed(1)

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
order = np.random.default_rng(1).permutation(len(images))
training, held_out = order[:1440], order[1440:]
own = training[rank::size]

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    mk.wrap(keras.optimizers.Adam(2e-3)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images[own],
    labels[own],
    batch_size=64 // size,
    epochs=10,
    validation_data=(images[held_out], labels[held_out]),
    callbacks=[mk.BroadcastCallback()],
    verbose=2 if rank == 0 else 0,
)
loss, accuracy = model.evaluate(images[held_out], labels[held_out], verbose=0)
print(f"accuracy {accuracy:.4f}, weights {sum(float(np.abs(w).sum()) for w in model.get_weights()):.6f}")
