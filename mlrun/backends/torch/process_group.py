"""torch.distributed's process group over a Communicator: backend ``mlrun`` for cpu, mps and cuda tensors.

A subclass of ProcessGroup and not of Backend, since a Backend is reached through dispatcher kernels that
don't exist for MPS. Method names are those that torch.distributed calls.
"""

# The supertype's stubs overload each method with a form that torch.distributed doesn't call.
# mypy: disable-error-code="override, assignment, call-arg"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.allreduce.communicator import Communicator, DType, Op, Work
from mlrun.backends.torch.staging import Staged
from mlrun.backends.torch.work import Completer, GroupWork

_OPS = {
    dist.ReduceOp.SUM: Op.SUM,
    dist.ReduceOp.AVG: Op.AVERAGE,
    dist.ReduceOp.MIN: Op.MIN,
    dist.ReduceOp.MAX: Op.MAX,
    dist.ReduceOp.PRODUCT: Op.PRODUCT,
}

_OWN_TAG = 1 << 30
"""Above the tags of user code: gather and scatter are made of point-to-point messages."""

_given: Communicator | None = None


def init_process_group(communicator: Communicator) -> MlrunProcessGroup:
    """Make ``communicator`` torch.distributed's default group; no store, no port, no message."""
    from mlrun.backends.torch import autoload  # noqa: PLC0415

    global _given  # noqa: PLW0603 - init_process_group has no argument for it
    autoload.register()
    _given = communicator
    try:
        dist.init_process_group(
            "mlrun",
            store=torch._C._distributed_c10d.HashStore(),
            rank=communicator.rank,
            world_size=communicator.size,
        )
    finally:
        _given = None
    group = dist.group.WORLD
    assert isinstance(group, MlrunProcessGroup)
    group.has_store = False
    return group


def make_group(options: Any, _: Any) -> MlrunProcessGroup:
    """The group for torch.distributed: over the given communicator, else one that meets at the store."""
    if _given is not None:
        return MlrunProcessGroup(_given)
    world = dist.group.WORLD if dist.is_initialized() else None
    if isinstance(world, MlrunProcessGroup) and not world.has_store:
        raise NotImplementedError("mlrun's own workers have no store at which new_group could meet")
    from mlrun.allreduce.ring import from_store  # noqa: PLC0415 - loads the native core

    timeout_s = options.timeout.total_seconds()
    return MlrunProcessGroup(from_store(options.store, options.group_rank, options.group_size, timeout_s))


class MlrunProcessGroup(dist.ProcessGroup):
    """Each collective goes issue -> staging -> engine; its results come back when its work is waited for."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self.has_store = True
        self._completer = Completer()
        self._name = self._description = ""

    def reduce_bucket(self, bucket: Tensor, wire_dtype: DType | None, name: str) -> GroupWork:
        """Sum a flat bucket of gradients; ``wire_dtype`` is what travels of float32 buckets."""
        staged = Staged([bucket])
        wire = wire_dtype if bucket.dtype == torch.float32 else None
        operation = self.communicator.all_reduce(staged.buffer(), Op.SUM, wire, name)
        return self._work([operation], [staged], [bucket])

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> GroupWork:
        op = _op(opts)
        staged = [Staged([t]) for t in tensors]
        operations = [self.communicator.all_reduce(s.buffer(), op, name="all_reduce") for s in staged]
        return self._work(operations, staged, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> GroupWork:
        staged = Staged(tensors)
        operation = self.communicator.all_reduce(staged.buffer(), _op(opts), name="all_reduce_coalesced")
        return self._work([operation], [staged], tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> GroupWork:
        """An all-reduce whose result only the root keeps."""
        on_root = self.communicator.rank == opts.rootRank
        staged = Staged(tensors if on_root else [tensors[0].clone()])
        operation = self.communicator.all_reduce(staged.buffer(), _op(opts), name="reduce")
        return self._work([operation], [staged], tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> GroupWork:
        staged = Staged(tensors)
        operation = self.communicator.broadcast(staged.buffer(bytewise=True), opts.rootRank, "broadcast")
        return self._work([operation], [staged], tensors)

    def barrier(self, opts: Any = None) -> GroupWork:
        return self._work([self.communicator.barrier("barrier")], [], [])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> GroupWork:
        return self._all_gather(outputs[0], inputs[0])

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> GroupWork:
        """``outputs[rank][i]`` gets ``rank``'s ``inputs[i]``."""
        by_input = [self._all_gather([out[i] for out in outputs], t) for i, t in enumerate(inputs)]
        return self._joined(by_input, [t for out in outputs for t in out])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:
        return self._all_gather([output], input)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> GroupWork:
        works = [self._all_gather([out], t) for out, t in zip(outputs, inputs, strict=True)]
        return self._joined(works, outputs)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> GroupWork:
        return self._reduce_scatter(outputs[0], inputs[0], _op(opts))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:
        return self._reduce_scatter(output, [input], _op(opts))

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> GroupWork:
        works = [self._reduce_scatter(o, [t], _op(opts)) for o, t in zip(outputs, inputs, strict=True)]
        return self._joined(works, outputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> GroupWork:
        return self._all_to_all(outputs, inputs, [t.numel() for t in outputs], [t.numel() for t in inputs])

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> GroupWork:
        """Splits count rows; empty lists are equal parts."""
        return self._all_to_all(
            [output], [input], _counts(output, output_splits), _counts(input, input_splits)
        )

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> GroupWork:
        if self.communicator.rank != opts.rootRank:
            return self.send(inputs, opts.rootRank, _OWN_TAG)
        received = [self.recv([t], r, _OWN_TAG) for r, t in enumerate(outputs[0]) if r != opts.rootRank]
        outputs[0][opts.rootRank].copy_(inputs[0])
        return self._joined(received, outputs[0])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> GroupWork:
        if self.communicator.rank != opts.rootRank:
            return self.recv(outputs, opts.rootRank, _OWN_TAG + 1)
        sent = [self.send([t], r, _OWN_TAG + 1) for r, t in enumerate(inputs[0]) if r != opts.rootRank]
        outputs[0].copy_(inputs[0][opts.rootRank])
        return self._joined(sent, outputs)

    def send(self, tensors: list[Tensor], to: int, tag: int) -> GroupWork:
        staged = Staged(tensors)
        return self._work(
            [self.communicator.send(staged.buffer(bytewise=True), to, tag)], [], tensors, [staged]
        )

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> GroupWork:
        staged = Staged(tensors, read=False)
        operation = self.communicator.recv(staged.buffer(bytewise=True), source, tag)
        return self._work([operation], [staged], tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> GroupWork:
        raise NotImplementedError("backend mlrun receives from a named rank only: pass src to recv")

    # Names of the same calls before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Without these, functional collectives and DeviceMesh say that the group has no name.
    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        return self._description

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "mlrun"

    def setTimeout(self, timeout: timedelta) -> None:  # noqa: N802 - torch's name
        """A Communicator's timers are set when it is made."""

    def abort(self) -> None:
        self.communicator.abort("torch.distributed asked for it")

    def shutdown(self) -> None:
        """Called by ``destroy_process_group``."""
        self._completer.close()
        self.communicator.close()

    def _all_gather(self, outputs: list[Tensor], source: Tensor) -> GroupWork:
        staged, target = Staged([source]), Staged(outputs, read=False)
        operation = self.communicator.all_gather(
            staged.buffer(bytewise=True), target.buffer(bytewise=True), "all_gather"
        )
        return self._work([operation], [target], outputs, [staged])

    def _reduce_scatter(self, output: Tensor, inputs: list[Tensor], op: Op) -> GroupWork:
        staged, target = Staged(inputs), Staged([output], read=False)
        operation = self.communicator.reduce_scatter(staged.buffer(), target.buffer(), op, "reduce_scatter")
        return self._work([operation], [target], [output], [staged])

    def _all_to_all(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        output_counts: list[int] | None,
        input_counts: list[int] | None,
    ) -> GroupWork:
        staged, target = Staged(inputs), Staged(outputs, read=False)
        operation = self.communicator.all_to_all(
            staged.buffer(), target.buffer(), input_counts, output_counts, "all_to_all"
        )
        return self._work([operation], [target], outputs, [staged])

    def _work(
        self,
        operations: Sequence[Work],
        written: Sequence[Staged],
        result: list[Tensor],
        kept: Sequence[Staged] = (),
    ) -> GroupWork:
        """``kept`` is what the engine only reads, and which must live as long."""
        return GroupWork(operations, written, result, self._completer, kept=kept)

    def _joined(self, works: Sequence[GroupWork], result: list[Tensor]) -> GroupWork:
        return GroupWork([], [], result, self._completer, parts=works)


def _op(opts: Any) -> Op:
    wanted = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for theirs, ours in _OPS.items():
        if wanted == theirs:
            return ours
    raise NotImplementedError(
        f"backend mlrun has no reduction {wanted}: it has sum, avg, min, max and product"
    )


def _counts(tensor: Tensor, splits: list[int]) -> list[int] | None:
    row = tensor[:1].numel() if tensor.dim() else 1
    return [rows * row for rows in splits] if splits else None
