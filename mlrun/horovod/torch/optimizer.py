"""``DistributedOptimizer``: gradients are averaged in buckets while the backward pass goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mlrun.allreduce.communicator import Op
from mlrun.horovod.options import Average, check_process_set, global_process_set, reduction
from mlrun.horovod.torch.compression import Compression
from mlrun.horovod.torch.handle import Handle
from mlrun.horovod.torch.reductions import reduce_in_place

BUCKET_BYTES = 4 << 20

T = TypeVar("T", bound=torch.optim.Optimizer)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: T,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
) -> T:
    """An optimizer of the same class, parameters and state whose ``step`` applies the reduced gradients.

    Sparse gradients are made dense, and buckets are mlrun's own, whatever ``sparse_as_dense``, ``groups`` and
    ``num_groups`` say. Gradients of several backward passes are summed on each rank.

    Raises:
        NotImplementedError: Adasum, a process set.
        ValueError: ``op`` is neither Average nor Sum, ``named_parameters`` has a name twice, or
            ``gradient_predivide_factor`` with another ``op`` than Average.
    """
    check_process_set(process_set)
    chosen = reduction(op)
    if chosen not in (Op.AVERAGE, Op.SUM):
        raise ValueError("gradients are reduced by hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1 and chosen is not Op.AVERAGE:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only")
    names = [name for name, _ in named_parameters or []]
    if len(set(names)) != len(names):
        raise ValueError("named_parameters has a name twice")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    own: Any = type(optimizer)

    class Distributed(_Distributed, own):  # type: ignore[misc]
        pass

    Distributed.__name__, Distributed.__qualname__ = own.__name__, own.__qualname__
    wrapped: Any = Distributed.__new__(Distributed)
    # A learning-rate schedule made before has put a ``step`` of its own on the optimizer.
    wrapped.__dict__ = {key: value for key, value in optimizer.__dict__.items() if key != "step"}
    wrapped._gradients = Gradients(
        parameters, compression, backward_passes_per_step, chosen, gradient_predivide_factor
    )
    wrapped._synchronizes = True
    distributed: T = wrapped
    return distributed


class _Distributed:
    """What the class of a distributed optimizer does before its own class does anything."""

    _gradients: Gradients
    _synchronizes: bool

    def synchronize(self) -> None:
        """Wait until all gradients are reduced: to clip them, say, before ``step``."""
        self._gradients.finish()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` doesn't reduce: ``synchronize`` was called before."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self._synchronizes:
            self.synchronize()
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **options: Any) -> None:
        if self._gradients.under_way:
            raise AssertionError(
                "zero_grad() was called between backward() and step(): the gradients are on their way. "
                "Call step() or synchronize() first"
            )
        super().zero_grad(*args, **options)  # type: ignore[misc]


class Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        """Gradients that this step's backward passes haven't brought yet."""
        self.travelling: list[tuple[Tensor, Any]] = []
        self.handle: Handle | None = None


class Gradients:
    """The gradients of one optimizer.

    Buckets start in one order on every rank, the last parameters' first, each once it and all before it are
    complete. What has no gradient at the end of a step takes part with zeros.
    """

    def __init__(
        self, parameters: Sequence[Tensor], compression: Any, passes: int, op: Op, predivide: float
    ) -> None:
        self._compression, self._passes, self._op, self._predivide = compression, passes, op, predivide
        self._buckets = [Bucket(each) for each in _in_buckets(parameters)]
        self._left = dict.fromkeys(parameters, passes)
        self._started = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]

    @property
    def under_way(self) -> bool:
        return self._started > 0

    def finish(self) -> None:
        """Reduce what hasn't started, wait for all, and put the results into the parameters."""
        while self._started < len(self._buckets):
            self._start_next()
        for bucket in self._buckets:
            assert bucket.handle is not None
            bucket.handle.wait()
            for parameter, (sent, context) in zip(bucket.parameters, bucket.travelling, strict=True):
                assert parameter.grad is not None
                reduced = self._compression.decompress(sent, context)
                if parameter.grad.is_sparse:
                    parameter.grad = reduced
                elif reduced is not parameter.grad:
                    parameter.grad.copy_(reduced)
            bucket.handle, bucket.travelling, bucket.missing = None, [], len(bucket.parameters)
        self._left = dict.fromkeys(self._left, self._passes)
        self._started = 0

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if self._left[parameter] == 0:
                raise AssertionError(
                    f"more than backward_passes_per_step={self._passes} backward passes before step(): "
                    "raise backward_passes_per_step"
                )
            self._left[parameter] -= 1
            bucket.missing -= self._left[parameter] == 0
            while self._started < len(self._buckets) and not self._buckets[self._started].missing:
                self._start_next()

        return hook

    @torch.no_grad()
    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        for parameter in bucket.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dense = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            bucket.travelling.append(self._compression.compress(dense))
        sent = [tensor for tensor, _ in bucket.travelling]
        bucket.handle = reduce_in_place(sent, self._op, 1 / self._predivide, self._predivide)


def _in_buckets(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """From the last parameter on; one type and device each, closed at ``BUCKET_BYTES`` or more."""
    buckets: list[list[Tensor]] = []
    filling: dict[Any, list[Tensor]] = {}
    for parameter in reversed(parameters):
        key = parameter.dtype, parameter.device
        bucket = filling.setdefault(key, [])
        bucket.append(parameter)
        if sum(p.numel() * p.element_size() for p in bucket) >= BUCKET_BYTES:
            buckets.append(filling.pop(key))
    return buckets + list(filling.values())
