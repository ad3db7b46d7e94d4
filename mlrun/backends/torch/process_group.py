"""torch.distributed's process group over a Communicator: backend ``mlrun`` for cpu, mps and cuda tensors.

A subclass of ProcessGroup and not of Backend, since a Backend is reached through dispatcher kernels that
don't exist for MPS. Method names are those that torch.distributed calls.
"""

# The supertype's stubs overload each method with a form that torch.distributed doesn't call.
# mypy: disable-error-code="override, assignment, call-arg"

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mlrun.allreduce.communicator import Communicator, DeadlineError, DType, Op, Work
from mlrun.allreduce.own import lent
from mlrun.backends.torch import refused_hooks
from mlrun.backends.torch.lane import Lane
from mlrun.backends.torch.staging import choice
from mlrun.backends.torch.staging.base import Staged, Staging
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


def init_process_group(communicator: Communicator, staging: choice.Mode = "auto") -> MlrunProcessGroup:
    """Make ``communicator`` torch.distributed's default group; no store, no port, no message.

    ``staging`` is the spec's ``allreduce.staging``: how tensors of a GPU meet the ring.
    """
    global _given  # noqa: PLW0603 - init_process_group has no argument for it
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
    group.choose_staging = lambda device: choice.for_device(device, staging)
    return group


def make_group(options: Any, _: Any) -> MlrunProcessGroup:
    """The group for torch.distributed: over the given communicator, else one that meets at the store.

    A group beside a world of ours is part of its ring: it opens no links and sends no message. So is the
    world of a script that runs in a worker: its links are those that the launcher has chosen.
    """
    if _given is not None:
        return MlrunProcessGroup(_given)
    world = dist.group.WORLD if dist.is_initialized() else None
    if isinstance(world, MlrunProcessGroup):
        part = world.communicator.subgroup(options.global_ranks_in_group, options.group_id)
        group = MlrunProcessGroup(part)
        group.choose_staging = world.choose_staging
        return group
    run = lent()
    if world is None and run is not None and (run.rank, run.size) == (options.group_rank, options.group_size):
        return MlrunProcessGroup(run.subgroup(range(run.size), options.group_id))
    from mlrun.allreduce.ring import from_store  # noqa: PLC0415 - loads the native core

    timeout_s = options.timeout.total_seconds()
    return MlrunProcessGroup(from_store(options.store, options.group_rank, options.group_size, timeout_s))


class MlrunProcessGroup(dist.ProcessGroup):
    """Each collective goes issue -> staging -> engine; its results come back when its work is waited for."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self.choose_staging: Callable[[torch.device], Staging] = choice.for_device
        self._lane = Lane()
        self._completer = Completer()
        self._name = self._description = ""
        self._coalesced: list[GroupWork] | None = None

    def reduce_bucket(self, bucket: Tensor, wire_dtype: DType | None, name: str) -> GroupWork:
        """Sum a flat bucket of gradients; ``wire_dtype`` is what travels of float32 buckets."""
        if self.communicator.size == 1:
            return self._work([], [], [bucket])
        wire = wire_dtype if bucket.dtype == torch.float32 else None
        return self._reduce([bucket], [bucket], Op.SUM, name, wire)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> GroupWork:
        op = _op(opts)
        if self.communicator.size == 1:
            return self._work([], [], tensors)
        works = [self._reduce([t], [t], op, "all_reduce") for t in tensors]
        return works[0] if len(works) == 1 else self._joined(works, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> GroupWork:
        return self._reduce(tensors, tensors, _op(opts), "all_reduce_coalesced")

    def reduce(self, tensors: list[Tensor], opts: Any) -> GroupWork:
        """An all-reduce whose result only the root keeps."""
        on_root = self.communicator.rank == opts.rootRank
        return self._reduce(tensors if on_root else [tensors[0].clone()], tensors, _op(opts), "reduce")

    def broadcast(self, tensors: list[Tensor], opts: Any) -> GroupWork:
        staged = self._issue(tensors)
        buffer = staged.buffer(bytewise=True)
        operation = self._start(
            [staged], lambda: self.communicator.broadcast(buffer, opts.rootRank, "broadcast")
        )
        return self._work([operation], [staged], tensors)

    def barrier(self, opts: Any = None) -> GroupWork:
        return self._work([self._start([], lambda: self.communicator.barrier("barrier"))], [], [])

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
        staged = self._issue(tensors)
        buffer = staged.buffer(bytewise=True)
        operation = self._start([staged], lambda: self.communicator.send(buffer, to, tag))
        return self._work([operation], [], tensors, [staged])

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> GroupWork:
        staged = self._issue(tensors, read=False)
        buffer = staged.buffer(bytewise=True)
        operation = self._start([staged], lambda: self.communicator.recv(buffer, source, tag))
        return self._work([operation], [staged], tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> GroupWork:
        raise NotImplementedError("backend mlrun receives from a named rank only: pass src to recv")

    def monitored_barrier(
        self, timeout: timedelta = timedelta(minutes=30), wait_all_ranks: bool = True
    ) -> None:
        """A barrier with a deadline of its own, after which every rank is told which ones haven't come.

        All that haven't are named, whatever ``wait_all_ranks``. The group can't be used after that.

        Raises:
            CommunicatorError: some ranks are missing.
        """
        word = torch.zeros(1, dtype=torch.uint8)
        if self.communicator.rank != 0:
            self.send([word], 0, _OWN_TAG + 2).wait()
            self.recv([word], 0, _OWN_TAG + 2).wait()
            return
        others = range(1, self.communicator.size)
        deadline = time.monotonic() + timeout.total_seconds()
        arrivals = [(rank, self.recv([word.clone()], rank, _OWN_TAG + 2)) for rank in others]
        missing = [str(rank) for rank, arrival in arrivals if not arrival.ended_by(deadline)]
        if missing:
            waited = f"{timeout.total_seconds():g} s"
            reason = f"ranks missing in monitored_barrier after {waited}: {', '.join(missing)}"
            self.communicator.abort(reason)
            raise DeadlineError(reason)
        self._joined([self.send([word], rank, _OWN_TAG + 2) for rank in others], []).wait()

    def _start_coalescing(self, device: Any) -> None:
        """What is called from now on is waited for as one, after ``_end_coalescing``."""
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> GroupWork:
        works, self._coalesced = self._coalesced or [], None
        return self._joined(works, [])

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

    supports_splitting = False
    """torch then takes the other way to make groups, ``new_group``, which costs nothing here."""

    @property
    def _device_types(self) -> list[torch.device]:
        """What asynchronous checkpoints and collectives of objects look for the CPU in."""
        return [torch.device(device) for device in dist.Backend.backend_capability["mlrun"]]

    def _get_backend(self, device: torch.device) -> MlrunProcessGroup:
        """What ``init_process_group(device_id=...)`` asks for: one group serves all devices."""
        return self

    def setTimeout(self, timeout: timedelta) -> None:  # noqa: N802 - torch's name
        """A Communicator's timers are set when it is made."""

    def abort(self) -> None:
        self.communicator.abort("torch.distributed asked for it")

    def shutdown(self) -> None:
        """Called by ``destroy_process_group``."""
        self._completer.close()
        self._lane.close()
        self.communicator.close()

    def _reduce(
        self, tensors: list[Tensor], result: list[Tensor], op: Op, name: str, wire: DType | None = None
    ) -> GroupWork:
        staged = self._issue(tensors)
        buffer = staged.buffer()
        operation = self._start([staged], lambda: self.communicator.all_reduce(buffer, op, wire, name))
        return self._work([operation], [staged], result)

    def _all_gather(self, outputs: list[Tensor], source: Tensor) -> GroupWork:
        _same_type(outputs[0], source)
        staged, target = self._issue([source]), self._issue(outputs, read=False)
        buffers = staged.buffer(bytewise=True), target.buffer(bytewise=True)
        operation = self._start(
            [staged, target], lambda: self.communicator.all_gather(*buffers, name="all_gather")
        )
        return self._work([operation], [target], outputs, [staged])

    def _reduce_scatter(self, output: Tensor, inputs: list[Tensor], op: Op) -> GroupWork:
        staged, target = self._issue(inputs), self._issue([output], read=False)
        buffers = staged.buffer(), target.buffer()
        operation = self._start(
            [staged, target], lambda: self.communicator.reduce_scatter(*buffers, op, "reduce_scatter")
        )
        return self._work([operation], [target], [output], [staged])

    def _all_to_all(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        output_counts: list[int] | None,
        input_counts: list[int] | None,
    ) -> GroupWork:
        _same_type(outputs[0], inputs[0])
        staged, target = self._issue(inputs), self._issue(outputs, read=False)
        buffers = staged.buffer(bytewise=True), target.buffer(bytewise=True)
        unit = inputs[0].element_size() // buffers[0].dtype.itemsize  # of types that travel as bytes
        input_counts = input_counts and [unit * count for count in input_counts]
        output_counts = output_counts and [unit * count for count in output_counts]
        operation = self._start(
            [staged, target],
            lambda: self.communicator.all_to_all(*buffers, input_counts, output_counts, "all_to_all"),
        )
        return self._work([operation], [target], outputs, [staged])

    def _issue(self, tensors: list[Tensor], *, read: bool = True) -> Staged:
        if tensors[0].layout != torch.strided:
            raise NotImplementedError(
                f"backend mlrun moves dense tensors only, not {tensors[0].layout}: use to_dense(), "
                "or sparse=False for an embedding"
            )
        return self.choose_staging(tensors[0].device).issue(tensors, read=read)

    def _start(self, staged: Sequence[Staged], start: Callable[[], Work]) -> Work:
        refused_hooks.check(in_callback=self._completer.is_current())
        return self._lane.start(staged, start)

    def _work(
        self,
        operations: Sequence[Work],
        written: Sequence[Staged],
        result: list[Tensor],
        kept: Sequence[Staged] = (),
    ) -> GroupWork:
        """``kept`` is what the engine only reads, and which must live as long."""
        work = GroupWork(operations, written, result, self._completer, kept=kept)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _joined(self, works: Sequence[GroupWork], result: list[Tensor]) -> GroupWork:
        return GroupWork([], [], result, self._completer, parts=works)


def _op(opts: Any) -> Op:
    wanted = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for theirs, ours in _OPS.items():
        if wanted == theirs:
            return ours
    known = dist.ReduceOp.RedOpType.__members__.items()
    name = next((name for name, kind in known if wanted == kind), "of this kind")
    raise NotImplementedError(f"backend mlrun has no reduction {name}: it has sum, avg, min, max and product")


def _same_type(output: Tensor, source: Tensor) -> None:
    """What only moves data would move the bytes of one type into another.

    Raises:
        TypeError: the types differ.
    """
    if output.dtype != source.dtype:
        raise TypeError(f"the output is {output.dtype} and the input {source.dtype}: give both one type")


def _counts(tensor: Tensor, splits: list[int]) -> list[int] | None:
    row = tensor[:1].numel() if tensor.dim() else 1
    return [rows * row for rows in splits] if splits else None
