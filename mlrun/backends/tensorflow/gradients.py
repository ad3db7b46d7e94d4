"""Reduces gradients over the ranks from inside TensorFlow's graph, bucket by bucket."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mlrun.allreduce.communicator import Buffer, Communicator, DType, Op, Work
from mlrun.backends.base import Span

_ALIGNMENT = 64
"""TensorFlow takes an array over without a copy where it starts at a multiple of this."""


class ReducedGradients:
    """Called on a step's gradients, gives their means over all ranks, or what ``op`` makes of them.

    A bucket is handed to the engine by an operation of its own as soon as its gradients exist, so that it
    travels while the backward pass goes on; other operations wait for it. Both are stateful, so TensorFlow
    runs them in the order they were traced, which is the same on every rank: the last layers' first.

    ``bucket_bytes``: how much at least travels together. ``wire``: as what it travels, where it's float32.
    Without ``overlap`` nothing travels before all gradients exist.
    """

    def __init__(
        self,
        communicator: Communicator,
        bucket_bytes: int,
        *,
        op: Op = Op.AVERAGE,
        wire: DType | None = None,
        overlap: bool = True,
    ) -> None:
        self._call = (communicator, op, wire)
        self._bucket_bytes = bucket_bytes
        self._overlap = overlap
        self._buckets: dict[tuple[Any, ...], _Bucket] = {}
        self._step = Step()

    def begin(self) -> Step:
        """From now on calls belong to a new step; the answer fills as the graph runs."""
        self._step = Step()
        return self._step

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Dense tensors of the given shapes; None stays None, and must be None on every rank."""
        reduced: list[Any] = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        members = self._members(reduced)
        own = {i: reduced[i] for group in members for i in group}
        if not self._overlap and own:
            own = dict(zip(own, tf.tuple(list(own.values())), strict=True))
        buckets = [self._bucket(number, [own[i] for i in group]) for number, group in enumerate(members)]
        tokens = [
            tf.numpy_function(lambda *g, b=bucket: b.start(self._step, *g), [own[i] for i in group], tf.int64)
            for bucket, group in zip(buckets, members, strict=True)
        ]
        for bucket, group, token in zip(buckets, members, tokens, strict=True):
            results = tf.numpy_function(
                lambda _, b=bucket: b.finish(self._step), [token], [own[i].dtype for i in group]
            )
            for i, result in zip(group, results, strict=True):
                reduced[i] = tf.ensure_shape(result, own[i].shape)
        return reduced

    def _bucket(self, number: int, tensors: Sequence[Any]) -> _Bucket:
        """Keras traces a step more than once: traces of the same gradients share their memory."""
        key = (number, tensors[0].dtype, *(tuple(tensor.shape) for tensor in tensors))
        if key not in self._buckets:
            self._buckets[key] = _Bucket(*self._call, tensors, number)
        return self._buckets[key]

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


class Step:
    """What the operations of one step tell: they run on TensorFlow's threads, one after the other."""

    def __init__(self) -> None:
        self.works: list[tuple[int, Work]] = []
        self.issued: float | None = None
        """When the last bucket was handed over: on a CPU, the end of the backward pass."""
        self.waits: list[tuple[float, float]] = []
        self.error: Exception | None = None
        """Of the engine. TensorFlow's own exception only has its text."""

    @property
    def waited_s(self) -> float:
        return sum(end - start for start, end in self.waits)

    def spans(self) -> list[Span]:
        """The time spent waiting, and when each bucket travelled."""
        times = [(number, work.times()) for number, work in self.works]
        waits = [Span("wait", self.waits[0][0], self.waits[-1][1])] if self.waits else []
        return waits + [Span(f"all_reduce:{number}", *span) for number, span in times if span is not None]


class _Bucket:
    """Gradients of one dtype that travel together, through one buffer that lives as long as the graph.

    Memory is taken at the first run, not when the step is traced.
    """

    def __init__(
        self,
        communicator: Communicator,
        op: Op,
        wire: DType | None,
        tensors: Sequence[Any],
        number: int,
    ) -> None:
        self._communicator = communicator
        self._op = op
        self._number = number
        self._shapes = [tuple(tensor.shape) for tensor in tensors]
        self._bfloat16 = tensors[0].dtype == tf.bfloat16
        self._dtype = np.dtype(tensors[0].dtype.as_numpy_dtype)
        self._wire = wire if self._dtype == np.float32 else None
        self._flat: np.ndarray[Any, Any] | None = None
        self._parts: list[np.ndarray[Any, Any]] = []
        self._work: Work | None = None

    def start(self, step: Step, *gradients: np.ndarray[Any, Any]) -> Any:
        """Copy the gradients and begin to reduce them; returns a token for ``finish``."""
        if self._flat is None:
            self._flat = self._allocate()
        for part, gradient in zip(self._parts, gradients, strict=True):
            np.copyto(part, gradient)
        buffer = Buffer.of(self._flat, DType.BFLOAT16 if self._bfloat16 else None)
        with _Told(step):
            self._work = self._communicator.all_reduce(
                buffer, self._op, self._wire, f"gradient bucket {self._number}"
            )
        step.issued = time.monotonic()
        return np.int64(0)

    def finish(self, step: Step) -> list[np.ndarray[Any, Any]]:
        """Wait; the reduced gradients, each a part of the bucket's buffer."""
        assert self._work is not None
        start = time.monotonic()
        with _Told(step):
            self._work.wait()
        step.waits.append((start, time.monotonic()))
        step.works.append((self._number, self._work))
        self._work = None
        return self._parts

    def _allocate(self) -> np.ndarray[Any, Any]:
        grain = _ALIGNMENT // self._dtype.itemsize
        counts = [math.prod(shape) for shape in self._shapes]
        starts = np.cumsum([0, *(-(-count // grain) * grain for count in counts)])
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


class _Told:
    """Leaves the first exception with the step on its way out."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: Any, error: Any, _traceback: Any) -> None:
        if error is not None and self._step.error is None:
            self._step.error = error
