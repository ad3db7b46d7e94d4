"""The device a rank trains on, its threads and its number format."""

from __future__ import annotations

import os

import keras
import tensorflow as tf

from mlrun.errors import RequestError
from mlrun.spec import JobSpec

_INTER_OP = 4
"""Operations at once, at least: one that waits for the ring holds a thread, and the backward pass goes on."""

_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def configure(spec: JobSpec, local_rank: int) -> str:
    """Set threads, visible devices and number format before anything is computed; the device's name.

    Raises:
        RequestError: the wanted device isn't there, or Keras isn't on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RequestError(
            f"framework tensorflow needs Keras on TensorFlow, and Keras is on {keras.backend.backend()}",
            fix="set KERAS_BACKEND=tensorflow in the spec's env, or remove it from the environment",
        )
    tf.config.threading.set_intra_op_parallelism_threads(threads(spec))
    tf.config.threading.set_inter_op_parallelism_threads(max(_INTER_OP, threads(spec)))
    keras.config.set_dtype_policy(_POLICIES[spec.precision])
    gpus = tf.config.list_physical_devices("GPU")
    if spec.device == "cpu" or not gpus:
        if spec.device not in ("auto", "cpu"):
            raise RequestError(
                f"device: {spec.device} doesn't work here: this TensorFlow sees no GPU",
                fix="set device: auto, or cpu; on a Mac the plug-in tensorflow-metal brings the GPU",
            )
        tf.config.set_visible_devices([], "GPU")
        return "CPU"
    own = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices([own], "GPU")
    tf.config.experimental.set_memory_growth(own, True)
    return str(tf.config.experimental.get_device_details(own).get("device_name", "GPU"))


def threads(spec: JobSpec) -> int:
    """CPU threads of this rank: the spec's, or its part of the host's cores."""
    if spec.threads is not None:
        return spec.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
