"""Gradients of a tape or an optimizer, reduced over all ranks inside TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mlrun.allreduce.communicator import Op
from mlrun.backends.tensorflow.gradients import ReducedGradients
from mlrun.horovod.options import Average, check_process_set, global_process_set, reduction
from mlrun.horovod.tensorflow.compression import Compression
from mlrun.horovod.world import world
from mlrun.keras.optimizer import BUCKET_BYTES


def reducer(op: Any, compression: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that gives a step's gradients reduced; None stays None.

    Raises:
        NotImplementedError: Adasum.
        ValueError: ``op`` is neither Average nor Sum.
    """
    chosen = reduction(op)
    if chosen not in (Op.AVERAGE, Op.SUM):
        raise ValueError("gradients are reduced by hvd.Average or hvd.Sum")
    communicator = world().in_float16 if compression is Compression.fp16 else world().communicator
    average = ReducedGradients(communicator, BUCKET_BYTES)
    if chosen is Op.AVERAGE:
        return average
    return lambda gradients: [g if g is None else g * communicator.size for g in average(gradients)]


class Tape:
    """A gradient tape whose gradients are reduced; all else is the tape's own."""

    def __init__(self, tape: Any, reduce: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._tape, self._reduce = tape, reduce

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def gradient(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """As ``tf.GradientTape.gradient``, over all ranks."""
        own = self._tape.gradient(target, sources, *args, **options)
        return tf.nest.pack_sequence_as(sources, self._reduce(tf.nest.flatten(own)))

    def __enter__(self) -> Tape:
        self._tape.__enter__()
        return self

    def __exit__(self, *what: Any) -> Any:
        return self._tape.__exit__(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Tape:
    """``gradtape``, with gradients reduced in mlrun's own buckets; sparse ones become dense."""
    check_process_set(process_set)
    return Tape(gradtape, reducer(op, compression))
