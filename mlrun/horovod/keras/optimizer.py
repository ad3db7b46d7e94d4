"""``DistributedOptimizer`` for ``model.fit``, and the loading of models that were trained with it."""

from __future__ import annotations

from typing import Any

import keras

import mlrun.keras as mk
from mlrun.allreduce.communicator import Op
from mlrun.horovod.options import Average, check_process_set, global_process_set, reduction
from mlrun.horovod.tensorflow.compression import Compression
from mlrun.horovod.world import world


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The same optimizer, which from now on reduces gradients over all ranks before it applies them.

    Raises:
        NotImplementedError: Adasum, a process set.
        ValueError: ``op`` is neither Average nor Sum.
        RequestError: Keras isn't on TensorFlow, or the optimizer is wrapped already.
    """
    check_process_set(process_set)
    chosen = reduction(op)
    if chosen not in (Op.AVERAGE, Op.SUM):
        raise ValueError("gradients are reduced by hvd.Average or hvd.Sum")
    communicator = world().in_float16 if compression is Compression.fp16 else world().communicator
    averaging = mk.wrap(optimizer, communicator)
    factor = world().size if chosen is Op.SUM else 1
    if backward_passes_per_step > 1:
        # Keras accumulates what it is given, the mean over the ranks, and applies its mean over the passes.
        averaging.gradient_accumulation_steps = backward_passes_per_step
        factor *= 1 if average_aggregated_gradients else backward_passes_per_step
    return averaging if factor == 1 else _scaled(averaging, factor)


def _scaled(optimizer: Any, factor: int) -> Any:
    own: Any = type(optimizer)

    class Scaling(own):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([g if g is None else g * factor for g in grads], trainable_variables)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Scaling, name, getattr(own, name))
    optimizer.__class__ = Scaling
    return optimizer


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model whose optimizer reduces gradients over all ranks."""
    known = {each.__name__: each for each in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
