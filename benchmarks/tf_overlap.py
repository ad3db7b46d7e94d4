"""What TensorFlow's backend hides of the communication: ``benchmarks/tf_overlap.py``.

Two ranks on this machine, one thread each, train a stack of equal layers over a link that is paced in the
engine so that communication takes half of the backward pass (measured first). Steps take turns: buckets
travel while the backward pass goes on, or all of them after it. Prints both and their ratio. Simulated links,
real computation; needs 2 idle cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

RANKS = 2
BLOCK = 4
"""Steps of one way before the other one's turn."""
WAYS = {"overlapped": True, "after the backward pass": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=192, help="samples per rank")
    parser.add_argument("--blocks", type=int, default=8, help=f"turns of {BLOCK} steps for each way")
    parser.add_argument("--share", type=float, default=0.5, help="communication over backward pass")
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        pipes.append(ours)
        ranks.append(context.Process(target=run, args=(rank, theirs, asked), daemon=True))
        ranks[-1].start()
        theirs.close()
    told = [pipe.recv() for pipe in pipes]
    backward = max(seconds for seconds, _ in told)
    size = told[0][1]
    pace = size * 8e-6 / (asked.share * backward)
    endpoints = [each for _, each in _exchange(pipes, pace)]
    _exchange(pipes, (endpoints, secrets.token_hex(32)), answer=False)
    results = [pipe.recv() for pipe in pipes]
    for process in ranks:
        process.join()
    print(f"backward pass {backward * 1e3:.0f} ms, gradients {size / 1e6:.0f} MB, link {pace:.0f} Mbit/s")
    steps = {}
    for way in WAYS:
        steps[way] = statistics.median(seconds for result in results for seconds in result[way]["step"])
        waited = statistics.median(seconds for result in results for seconds in result[way]["waited"])
        print(f"{way}: {steps[way] * 1e3:.0f} ms per step, of which {waited * 1e3:.0f} ms only waiting")
        if way == "after the backward pass":
            print(f"communication over backward pass: {waited / backward:.2f}")
    overlapped, plain = steps.values()
    print(f"ratio {overlapped / plain:.3f}")


def _exchange(pipes: list[Connection], message: Any, *, answer: bool = True) -> list[tuple[int, Any]]:
    for pipe in pipes:
        pipe.send(message)
    return [(rank, pipe.recv()) for rank, pipe in enumerate(pipes)] if answer else []


def run(rank: int, pipe: Connection, asked: argparse.Namespace) -> None:
    """One rank: tell (seconds of a backward pass, bytes of gradients), get a pace, join, take turns."""
    import keras  # noqa: PLC0415 - not in the parent
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    from mlrun.allreduce.communicator import Op  # noqa: PLC0415
    from mlrun.allreduce.engines import connect  # noqa: PLC0415
    from mlrun.allreduce.links import Listener  # noqa: PLC0415
    from mlrun.backends.tensorflow.data import Batch  # noqa: PLC0415
    from mlrun.backends.tensorflow.gradients import ReducedGradients  # noqa: PLC0415
    from mlrun.backends.tensorflow.tasks import make_task  # noqa: PLC0415
    from mlrun.backends.tensorflow.training import Training  # noqa: PLC0415
    from mlrun.protocol import Plan  # noqa: PLC0415
    from mlrun.spec import JobSpec  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(asked.width, activation="relu") for _ in range(asked.layers)]
    model = keras.Sequential([keras.Input((asked.width,)), *layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)
    task = make_task(
        JobSpec.model_validate({"name": "t", "model": {"name": "mlp"}, "batch_size": 1, "steps": 1})
    )
    draw = np.random.default_rng(rank)
    inputs = tf.constant(draw.standard_normal((asked.batch, asked.width), dtype=np.float32))
    batch = Batch(inputs, tf.constant(draw.integers(0, 10, asked.batch)), asked.batch)

    alone = Training(model, task, optimizer, None, checked=False)
    backward = []
    for _ in range(8):
        alone.step([batch], asked.batch)
        assert alone.forward_until is not None
        backward.append(time.monotonic() - alone.forward_until)
    pipe.send((statistics.median(backward[2:]), 4 * model.count_params()))

    settings = {"links": 1, "pace_mbit_s": pipe.recv()}
    with Listener(["127.0.0.1"]) as listener:
        pipe.send(listener.endpoints)
        endpoints, secret = pipe.recv()
        plan = Plan(0, "ring", endpoints, ["localhost"] * RANKS, settings)
        communicator = connect(plan, rank, listener, secret)
    reductions = {
        way: ReducedGradients(communicator, 4 << 20, op=Op.SUM, overlap=overlap)
        for way, overlap in WAYS.items()
    }
    trainings = {
        way: Training(model, task, optimizer, reduced, checked=False) for way, reduced in reductions.items()
    }
    results: dict[str, dict[str, list[float]]] = {way: {"step": [], "waited": []} for way in WAYS}
    for block in range(asked.blocks + 1):
        for way, training in trainings.items():
            communicator.barrier(f"turn {block}").wait()
            for _ in range(BLOCK):
                told = reductions[way].begin()
                start = time.monotonic()
                training.step([batch], RANKS * asked.batch)
                if block > 0:  # the first turn is warm-up
                    results[way]["step"].append(time.monotonic() - start)
                    results[way]["waited"].append(told.waited_s)
    communicator.barrier("end").wait()
    communicator.close()
    pipe.send(results)


if __name__ == "__main__":
    main()
