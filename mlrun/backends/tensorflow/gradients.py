"""Averages gradients over the ranks from inside TensorFlow's graph, bucket by bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mlrun.allreduce.communicator import Buffer, Communicator, Op, Work

_ALIGNMENT = 64
"""TensorFlow takes an array over without a copy where it starts at a multiple of this."""


class AveragedGradients:
    """Called on a step's gradients, gives their means over all ranks.

    A bucket is handed to the engine by an operation of its own as soon as its gradients exist, so that it
    travels while the backward pass goes on; other operations wait for it. Both are stateful, so TensorFlow
    runs them in the order they were traced, which is the same on every rank: the last layers' first.

    ``bucket_bytes``: how much at least travels together.
    """

    def __init__(self, communicator: Communicator, bucket_bytes: int) -> None:
        self._communicator = communicator
        self._bucket_bytes = bucket_bytes

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Dense tensors of the given shapes; None stays None, and must be None on every rank."""
        averaged: list[Any] = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        members = self._members(averaged)
        buckets = [
            _Bucket(self._communicator, [averaged[i] for i in group], f"bucket {number}")
            for number, group in enumerate(members)
        ]
        tokens = [
            tf.numpy_function(bucket.start, [averaged[i] for i in group], tf.int64)
            for bucket, group in zip(buckets, members, strict=True)
        ]
        for bucket, group, token in zip(buckets, members, tokens, strict=True):
            results = tf.numpy_function(bucket.finish, [token], [averaged[i].dtype for i in group])
            for i, result in zip(group, results, strict=True):
                averaged[i] = tf.ensure_shape(result, averaged[i].shape)
        return averaged

    def _members(self, tensors: Sequence[Any]) -> list[list[int]]:
        """Numbers of the tensors of each bucket, from the last tensor on; one dtype per bucket."""
        full: list[list[int]] = []
        filling: dict[Any, list[int]] = {}
        sizes: dict[Any, int] = {}
        for i in reversed(range(len(tensors))):
            if tensors[i] is None:
                continue
            dtype = tensors[i].dtype
            filling.setdefault(dtype, []).append(i)
            sizes[dtype] = sizes.get(dtype, 0) + math.prod(tensors[i].shape) * dtype.size
            if sizes[dtype] >= self._bucket_bytes:
                full.append(filling.pop(dtype))
                del sizes[dtype]
        return full + list(filling.values())


class _Bucket:
    """Gradients of one dtype that travel together, through one buffer that lives as long as the graph.

    Keras traces a step more than once, so memory is taken at the first run.
    """

    def __init__(self, communicator: Communicator, tensors: Sequence[Any], name: str) -> None:
        self._communicator = communicator
        self._name = name
        self._shapes = [tuple(tensor.shape) for tensor in tensors]
        self._dtype = np.dtype(tensors[0].dtype.as_numpy_dtype)
        self._flat: np.ndarray[Any, Any] | None = None
        self._parts: list[np.ndarray[Any, Any]] = []
        self._work: Work | None = None

    def start(self, *gradients: np.ndarray[Any, Any]) -> Any:
        """Copy the gradients and begin to average them; returns a token for ``finish``."""
        if self._flat is None:
            self._flat = self._allocate()
        for part, gradient in zip(self._parts, gradients, strict=True):
            np.copyto(part, gradient)
        self._work = self._communicator.all_reduce(Buffer.of(self._flat), Op.AVERAGE, name=self._name)
        return np.int64(0)

    def finish(self, _token: Any) -> list[np.ndarray[Any, Any]]:
        """Wait; the means, each a part of the bucket's buffer."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        return self._parts

    def _allocate(self) -> np.ndarray[Any, Any]:
        step = _ALIGNMENT // self._dtype.itemsize
        counts = [math.prod(shape) for shape in self._shapes]
        starts = np.cumsum([0, *(-(-count // step) * step for count in counts)])
        raw = np.zeros(int(starts[-1]) * self._dtype.itemsize + _ALIGNMENT, dtype=np.uint8)
        offset = -raw.ctypes.data % _ALIGNMENT
        flat: np.ndarray[Any, Any] = raw[offset : offset + int(starts[-1]) * self._dtype.itemsize].view(
            self._dtype
        )
        self._parts = [
            flat[start : start + count].reshape(shape)
            for start, count, shape in zip(starts, counts, self._shapes, strict=False)
        ]
        return flat
