"""A script written for Horovod, on TensorFlow: a loop of one's own with ``DistributedGradientTape``.

mlrun launch --horovod examples/horovod_tensorflow.py -np 2 -- --steps 100
"""

import argparse

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(0.002)


@tf.function
def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def main() -> None:
    options = parser.parse_args()
    hvd.init()
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    own = slice(hvd.rank(), 1500, hvd.size())
    data = tf.data.Dataset.from_tensor_slices((images[own], digits.target[own]))

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    batches = data.repeat().shuffle(750, seed=hvd.rank()).batch(32)
    for number, (inputs, labels) in enumerate(batches.take(options.steps)):
        loss = step(inputs, labels)
        if number % 20 == 0 and hvd.rank() == 0:
            print(f"step {number}: loss {float(loss):.4f} on {hvd.size()} ranks", flush=True)
    right = np.mean(np.argmax(model(images[1500:]), axis=1) == digits.target[1500:])
    if hvd.rank() == 0:
        print(f"accuracy {right:.4f}", flush=True)
    total = sum(float(weight.sum(dtype=np.float64)) for weight in model.get_weights())
    print(f"rank {hvd.rank()}: sum of parameters {total!r}", flush=True)


if __name__ == "__main__":
    main()
