"""What the ranks do: as a script written for Horovod would. Imports TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mlrun import horovod as stand_in
from mlrun.allreduce import own
from mlrun.allreduce.communicator import Communicator


def _start(communicator: Communicator) -> None:
    if str(stand_in.MODULES) not in sys.path:
        stand_in.install()
    own.lend(communicator)
    import horovod  # type: ignore[import-not-found]  # noqa: PLC0415

    horovod.shutdown()
    horovod.init()


def collectives(communicator: Communicator, traced: bool) -> dict[str, Any]:
    """One of each, eager or in a graph; rank r holds r + 1."""
    _start(communicator)
    import horovod.tensorflow as hvd  # noqa: PLC0415

    rank = hvd.rank()

    def calls(own: Any) -> dict[str, Any]:
        came, counts = hvd.alltoall(tf.range(3) + 10 * rank, splits=[1, 2] if rank == 0 else [3, 0])
        return {
            "average": hvd.allreduce(own),
            "sum": hvd.allreduce(own, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
            "fp16": hvd.allreduce(own, compression=hvd.Compression.fp16),
            "grouped": hvd.grouped_allreduce([own, 2 * own], op=hvd.Max)[1],
            "sparse": hvd.allreduce(tf.IndexedSlices(own[tf.newaxis], [rank], (2, 2)), op=hvd.Sum),
            "gathered": hvd.allgather(tf.fill([rank + 1, 2], rank)),
            "broadcast": hvd.broadcast(own, root_rank=1),
            "came": came,
            "counts": counts,
            "rows": hvd.reducescatter(tf.range(3.0), op=hvd.Sum),
        }

    results = (tf.function(calls) if traced else calls)(tf.fill([2], float(rank + 1)))
    found = {name: value.numpy().tolist() for name, value in results.items()}
    found["object"] = hvd.broadcast_object({"from": rank}, root_rank=1)
    found["objects"] = hvd.allgather_object("x" * rank)
    hvd.barrier()
    return found


def gradients_through(communicator: Communicator) -> list[list[float]]:
    _start(communicator)
    import horovod.tensorflow as hvd  # noqa: PLC0415

    weight = tf.Variable([1.0, 1.0])
    found = []
    for make in (hvd.allreduce, hvd.allgather, lambda w: hvd.broadcast(w, 1)):
        with tf.GradientTape() as tape:
            made = make(weight)
            loss = tf.reduce_sum(made * tf.range(float(made.shape[0] or 4)) * float(hvd.rank() + 1))
        found.append(tape.gradient(loss, weight).numpy().tolist())
    return found


def _model() -> Any:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])


def _data() -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    return draw.standard_normal((16, 6)).astype(np.float32), draw.integers(0, 3, 16)


def trained_alone(steps: int, rate: float) -> list[Any]:
    model, (inputs, targets) = _model(), _data()
    model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(steps):
        model.train_on_batch(inputs, targets)
    return [v.numpy() for v in model.weights]


def trained_by_tape(communicator: Communicator, steps: int, rate: float, op: str) -> list[Any]:
    """In a ``tf.function`` with ``DistributedGradientTape``; weights differ before the broadcast."""
    _start(communicator)
    import horovod.tensorflow as hvd  # noqa: PLC0415

    model, (inputs, targets) = _model(), _data()
    if hvd.rank():
        model.layers[0].kernel.assign(tf.ones((6, 8)))
    optimizer = keras.optimizers.SGD(rate)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(inputs: Any, targets: Any, first: bool) -> Any:
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape, op=getattr(hvd, op))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    own = slice(hvd.rank(), None, hvd.size())
    for number in range(steps):
        step(inputs[own], targets[own], number == 0)
    return [v.numpy() for v in model.weights]


def fitted(communicator: Communicator, steps: int, rate: float, options: dict[str, Any]) -> dict[str, Any]:
    """By ``model.fit`` with all callbacks; the whole data of a rank is one batch."""
    _start(communicator)
    import horovod.tensorflow.keras as hvd  # noqa: PLC0415

    model, (inputs, targets) = _model(), _data()
    if hvd.rank():
        model.layers[0].kernel.assign(tf.ones((6, 8)))
    own = slice(hvd.rank(), None, hvd.size())
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(rate), **options),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(
        inputs[own],
        targets[own],
        batch_size=8,
        epochs=steps,
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateScheduleCallback(rate, lambda epoch: 1.0),
        ],
    )
    return {"weights": [v.numpy() for v in model.weights], "losses": history.history["loss"]}


def warmed_up(communicator: Communicator) -> list[float]:
    """The rate at the end of each of 3 epochs of 4 steps, 2 of them of warm-up to 0.4."""
    _start(communicator)
    import horovod.keras as hvd  # noqa: PLC0415

    model, (inputs, targets) = _model(), _data()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.4)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    history = model.fit(inputs, targets, batch_size=4, epochs=3, verbose=0, callbacks=[warm_up])
    rates: list[float] = history.history["lr"]
    return rates


def joined_early(communicator: Communicator) -> tuple[list[float], int]:
    """Rank 0 has one batch, rank 1 three."""
    _start(communicator)
    import horovod.tensorflow as hvd  # noqa: PLC0415

    sums = [float(hvd.allreduce(tf.ones(3, tf.bfloat16), op=hvd.Sum)[0]) for _ in range(1 + 2 * hvd.rank())]
    return sums, hvd.join()


def refusals(communicator: Communicator) -> dict[str, str]:
    _start(communicator)
    import horovod.keras as hvk  # noqa: PLC0415
    import horovod.tensorflow as hvd  # noqa: PLC0415

    attempts = {
        "Adasum": lambda: hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum),
        "max of gradients": lambda: hvk.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Max),
        "process set": lambda: hvd.allreduce(tf.ones(1), process_set=object()),
        "global variables": lambda: hvd.broadcast_global_variables(0),
        "SyncBatchNormalization": lambda: hvd.SyncBatchNormalization,
        "nothing": lambda: hvk.PartialDistributedOptimizer,
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (NotImplementedError, AttributeError, ValueError) as error:
            said[name] = str(error)
    return said
