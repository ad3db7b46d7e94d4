"""A script written for Horovod, on Keras and TensorFlow: ``model.fit`` on handwritten digits.

mlrun launch --horovod examples/horovod_keras.py -np 2 -- --epochs 5
"""

import argparse

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)


def main() -> None:
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    own = slice(hvd.rank(), 1500 // hvd.size() * hvd.size(), hvd.size())

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rate = 0.002 * hvd.size()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images[own],
        digits.target[own],
        batch_size=32,
        epochs=options.epochs,
        validation_data=(images[1500:], digits.target[1500:]),
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2),
        ],
    )
    total = sum(float(weight.sum(dtype=np.float64)) for weight in model.get_weights())
    print(f"rank {hvd.rank()}: sum of parameters {total!r}", flush=True)


if __name__ == "__main__":
    main()
