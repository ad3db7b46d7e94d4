"""Collectives on TensorFlow's tensors, eager or inside a graph.

In a graph they are stateful operations, which TensorFlow runs in the order in which they were traced: the
same on every rank. ``name`` and the devices are there for Horovod's sake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mlrun.allreduce.communicator import Op
from mlrun.horovod import arrays, objects
from mlrun.horovod.options import Average, check_process_set, global_process_set, reduction
from mlrun.horovod.tensorflow.compression import Compression
from mlrun.horovod.world import rank, size, world


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """IndexedSlices become dense."""
    check_process_set(process_set)
    chosen = reduction(op, average)

    def reduce(dense: Any) -> Any:
        return _in_graph(
            lambda array: arrays.all_reduce(
                array, chosen, prescale_factor, postscale_factor, in_float16=compression is Compression.fp16
            ),
            dense,
            dense.shape,
        )

    return _with_gradient(tensor, reduce, reduce)


def grouped_allreduce(tensors: Sequence[Any], *args: Any, **options: Any) -> list[Any]:
    return [allreduce(tensor, *args, **options) for tensor in tensors]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """All ranks' tensors below each other; they may differ in their number of rows."""
    check_process_set(process_set)

    def gather(own: Any) -> Any:
        return _in_graph(arrays.all_gather, own, [None, *own.shape[1:]])

    def gradient(own: Any, upstream: Any) -> Any:
        rows = _in_graph(arrays.all_gather, tf.shape(own, tf.int64)[:1], [size()])
        summed = _in_graph(lambda array: arrays.all_reduce(array, Op.SUM), upstream, upstream.shape)
        start = tf.reduce_sum(rows[: rank()])
        return summed[start : start + rows[rank()]]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def through(own: Any) -> Any:
        return gather(own), lambda upstream: gradient(own, upstream)

    return through(tf.convert_to_tensor(tensor))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    check_process_set(process_set)

    def copy(own: Any) -> Any:
        return _in_graph(lambda array: arrays.broadcast(array, root_rank), own, own.shape)

    def gradient(upstream: Any) -> Any:
        summed = _in_graph(lambda array: arrays.all_reduce(array, Op.SUM), upstream, upstream.shape)
        return summed if rank() == root_rank else tf.zeros_like(summed)

    return _with_gradient(tensor, copy, gradient)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """The rows that came, by rank; and how many came from each, where ``splits`` is given."""
    check_process_set(process_set)
    own = tf.convert_to_tensor(tensor)
    inputs = [own] if splits is None else [own, tf.convert_to_tensor(splits, tf.int64)]
    came, received = tf.numpy_function(
        lambda array, shares=None: arrays.all_to_all(array, shares), inputs, [own.dtype, tf.int64]
    )
    came = tf.ensure_shape(came, [None, *own.shape[1:]])
    return came if splits is None else (came, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduced tensor; where they don't divide, the first ranks have one more."""
    check_process_set(process_set)
    chosen, own = reduction(op), tf.convert_to_tensor(tensor)
    scaled = own if prescale_factor == 1 else own * prescale_factor
    scattered = _in_graph(lambda array: arrays.reduce_scatter(array, chosen), scaled, [None, *own.shape[1:]])
    return scattered if postscale_factor == 1 else scattered * postscale_factor


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: Any = global_process_set, inplace: bool = False
) -> None:
    """Give all ranks ``root_rank``'s values of ``variables``, TensorFlow's or Keras'."""
    check_process_set(process_set)
    for variable in variables:
        value = tf.convert_to_tensor(getattr(variable, "value", variable))
        variable.assign(broadcast(value, root_rank))


def broadcast_global_variables(root_rank: int) -> None:
    """Refused: graphs with global variables are TensorFlow 1's."""
    raise NotImplementedError("there are no global variables since TensorFlow 2: hvd.broadcast_variables")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """``root_rank``'s object. It is pickled."""
    check_process_set(process_set)

    def in_place(array: Any) -> None:
        array[...] = arrays.broadcast(array, root_rank)

    return objects.broadcast_object(obj, root_rank, in_place)


def allgather_object(obj: Any, session: Any = None, name: str | None = None) -> list[Any]:
    """Every rank's object, in rank order. They are pickled."""
    own = objects.pickled(obj)
    lengths = arrays.all_gather([own.size])
    return objects.unpickled(arrays.all_gather(own), lengths.tolist())


def barrier(process_set: Any = global_process_set) -> None:
    """Wait until every rank is here."""
    check_process_set(process_set)
    world().communicator.barrier("barrier").wait()


def join() -> int:
    """This rank has no more data: take part in the others' all-reduces with zeros until all have joined.

    Returns the rank that joined last. What the others call meanwhile must be all-reduces.
    """
    return world().join()


def _in_graph(function: Callable[[Any], Any], tensor: Any, shape: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(function, [tensor], tensor.dtype), shape)


def _with_gradient(tensor: Any, run: Callable[[Any], Any], gradient: Callable[[Any], Any]) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def through(own: Any) -> Any:
        return run(own), gradient

    return through(tf.convert_to_tensor(tensor))
