"""What ranks do with the parts of PyTorch that are built on torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from mlrun.allreduce import own
from mlrun.backends.torch.process_group import init_process_group

STEPS = 4


def _in_a_group(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(communicator: Any, *args: Any) -> Any:
        init_process_group(communicator)
        return function(*args)

    return run


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _batch(step: int, rank: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def _loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(_batch(step, rank)).square().mean()


def _flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def train_alone(size: int) -> list[float]:
    """The parameters after STEPS steps of Adam on the mean of all ranks' losses."""
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(_loss(model, step, rank) for rank in range(size)) / size).backward()
        optimizer.step()
    return _flat(model)


@_in_a_group
def train_fsdp2() -> tuple[list[float], bool]:
    """The same with ``fully_shard``; the parameters, and whether each rank really held a part only."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    model = _model()
    whole = sum(p.numel() for p in model.parameters())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    held = sum(p.to_local().numel() for p in model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model, step, dist.get_rank()).backward()
        optimizer.step()
    parameters = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    return parameters.tolist(), held < whole


@_in_a_group
def train_on_a_mesh() -> list[float]:
    """The same on two pairs of ranks, each of which shares layers out; ``fully_shard`` goes across pairs."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _model()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model, step, mesh["data"].get_local_rank()).backward()
        optimizer.step()
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]).tolist()


@_in_a_group
def train_with_sharded_optimizer() -> tuple[list[float], int]:
    """The same with ZeroRedundancyOptimizer; the parameters, and how many of them this rank's Adam keeps."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model, step, dist.get_rank()).backward()
        optimizer.step()
    return _flat(model), len(optimizer.optim.state)


@_in_a_group
def train_with_local_steps() -> tuple[list[list[float]], list[bool]]:
    """Post-local SGD over two groups of two: parameters per step, and whether all ranks agree on them.

    Gradients are averaged over all ranks in step 0 and over the group's after it, parameters over all ranks
    in steps 1 and 3.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks  # noqa: PLC0415
    from torch.distributed.algorithms.model_averaging.averagers import (  # noqa: PLC0415
        PeriodicModelAverager,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: PLC0415

    own, _ = dist.new_subgroups(group_size=2)
    model = DistributedDataParallel(_model())
    state = hooks.PostLocalSGDState(process_group=None, subgroup=own, start_localSGD_iter=1)
    model.register_comm_hook(state, hooks.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        PeriodicModelAverager(period=2, warmup_steps=1),
    )
    seen, agree = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model, step, dist.get_rank()).backward()
        optimizer.step()
        seen.append(_flat(model))
        everywhere: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, seen[-1])
        agree.append(all(each == seen[-1] for each in everywhere))
    return seen, agree


@_in_a_group
def train_uneven() -> tuple[list[float], int]:
    """Rank r has r + 2 batches: ``Join`` lets the others go on."""
    from torch.distributed.algorithms.join import Join  # noqa: PLC0415

    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with Join([model]):
        for step in range(dist.get_rank() + 2):
            optimizer.zero_grad()
            _loss(model, step, dist.get_rank()).backward()
            optimizer.step()
            steps += 1
    return _flat(model), steps


@_in_a_group
def multiply_sharded() -> dict[str, Any]:
    """DTensor: a row-wise and a column-wise sharded product on a 2 x 2 mesh, and redistribution."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    torch.manual_seed(0)
    a, b = torch.randn(4, 6), torch.randn(6, 8)
    left = distribute_tensor(a, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(b, mesh, [Replicate(), Shard(0)])
    product = left @ right
    moved = product.redistribute(mesh, [Shard(1), Replicate()])
    assert isinstance(product, DTensor)
    return {
        "equal": torch.allclose(product.full_tensor(), a @ b, atol=1e-5),
        "moved": torch.allclose(moved.full_tensor(), a @ b, atol=1e-5),
        "local": list(moved.to_local().shape),
    }


@_in_a_group
def save_and_load_a_checkpoint(folder: str) -> bool:
    """DCP: a sharded tensor and a plain one, read back into another layout."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    values = torch.arange(24.0).reshape(6, 4)
    dcp.save(
        {"sharded": distribute_tensor(values, mesh, [Shard(0)]), "plain": values + 1}, checkpoint_id=folder
    )
    state = {
        "sharded": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)]),
        "plain": torch.zeros(6, 4),
    }
    dcp.load(state, checkpoint_id=folder)
    found = state["sharded"].redistribute(mesh, [Replicate()]).to_local()
    return torch.equal(found, values) and torch.equal(state["plain"], values + 1)


@_in_a_group
def save_while_training(folder: str) -> bool:
    """DCP's ``async_save`` in a group of its own, beside all-reduces of all ranks."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    values = torch.arange(6.0)
    saving = dcp.async_save({"values": values}, checkpoint_id=folder, process_group=dist.new_group())
    for _ in range(20):
        dist.all_reduce(torch.ones(10))
    saving.result()
    state = {"values": torch.zeros(6)}
    dcp.load(state, checkpoint_id=folder)
    return torch.equal(state["values"], values)


@_in_a_group
def pass_through_a_pipeline() -> list[float]:
    """A layer per rank, four micro-batches: the gradient of this rank's layer."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: PLC0415

    rank, size = dist.get_rank(), dist.get_world_size()
    layer = pipeline_layers(size)[rank]
    schedule = ScheduleGPipe(
        PipelineStage(layer, rank, size, torch.device("cpu")), n_microbatches=4, loss_fn=_mean_square
    )
    inputs = (_batch(0, 0)[:4],) if rank == 0 else ()
    schedule.step(*inputs, target=torch.zeros(4, 8) if rank == size - 1 else None)
    return layer.weight.grad.flatten().tolist()


def pipeline_layers(size: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8) for _ in range(size)]


def gradients_without_a_pipeline(size: int) -> list[list[float]]:
    layers = pipeline_layers(size)
    _mean_square(nn.Sequential(*layers)(_batch(0, 0)[:4]), torch.zeros(4, 8)).backward()
    return [layer.weight.grad.flatten().tolist() for layer in layers]


def _mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def use_the_runs_ring(communicator: Any) -> float:
    """A script's own ``init_process_group`` in a worker, twice; a sum."""
    own.lend(communicator)
    try:
        for _ in range(2):
            store = (
                dist.HashStore()
            )  # nobody else is there: a group that met at the store would wait for ever
            dist.init_process_group(
                "mlrun", store=store, rank=communicator.rank, world_size=communicator.size
            )
            value = torch.full((1000,), float(communicator.rank + 1))
            dist.all_reduce(value)
            dist.destroy_process_group()
    finally:
        own.lend(None)
    return value[0].item()


@_in_a_group
def use_functional_collectives() -> dict[str, Any]:
    import torch.distributed._functional_collectives as functional  # noqa: PLC0415

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((size,), float(rank + 1))
    return {
        "sum": functional.all_reduce(mine, "sum", dist.group.WORLD).tolist(),
        "gathered": functional.all_gather_tensor(mine[:1], 0, dist.group.WORLD).tolist(),
        "scattered": functional.reduce_scatter_tensor(mine, "avg", 0, dist.group.WORLD).tolist(),
    }


@_in_a_group
def use_groups() -> dict[str, Any]:
    """Overlapping groups of four ranks, neighbours in the ring and not, some with calls under way at once."""
    rank = dist.get_rank()
    members = [[0, 2], [1, 3], [0, 1, 3], [2]]
    groups = [dist.new_group(ranks) for ranks in members]
    local = dist.new_group(members[rank % 2], use_local_synchronization=True)
    tensors = [torch.full((3,), 10.0**rank) for _ in members]
    mine = [n for n, ranks in enumerate(members) if rank in ranks]
    # Order counts within a group alone: ranks may call those of two groups in orders of their own.
    works = [
        dist.all_reduce(tensors[n], group=groups[n], async_op=True)
        for n in (mine if rank < 2 else reversed(mine))
    ]
    whole = torch.full((2,), 10.0**rank)
    dist.all_reduce(whole)
    for work in works:
        work.wait()
    pair = members[rank % 2]
    received = torch.zeros(1)
    other = pair[1 - pair.index(rank)]
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([float(rank)]), other, local),
            dist.P2POp(dist.irecv, received, other, local),
        ]
    )
    for request in requests:
        request.wait()
    names: list[Any] = [None, None]
    dist.all_gather_object(names, f"rank {rank}", group=local)
    dist.destroy_process_group(local)
    dist.barrier()
    return {
        "sums": [t[0].item() if rank in ranks else None for t, ranks in zip(tensors, members, strict=True)],
        "whole": whole.tolist(),
        "received": received.item(),
        "names": names,
    }


@_in_a_group
def exchange_types_without_sums() -> list[list[float]]:
    """Uneven parts of types that the ring can't add up; what this rank gets."""
    rank = dist.get_rank()
    received = []
    for kind in (torch.int16, torch.complex128, torch.float8_e4m3fn):
        parts = [1, 2] if rank == 0 else [2, 1]  # what goes from 0 to 1 is as long as what comes back
        output = torch.zeros(3).to(kind)
        dist.all_to_all_single(output, torch.tensor([rank, 2.0, 4.0]).to(kind), parts, parts)
        received.append(output.to(torch.complex128).real.tolist())
    return received


@_in_a_group
def use_coalescing() -> list[list[float]]:
    """Three sums in one call, and two of unlike length."""
    from torch.distributed.distributed_c10d import _coalescing_manager  # noqa: PLC0415

    rank = dist.get_rank()
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 2, 3)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    slow = [torch.full((n,), float(rank + 1)) for n in (1, 2)]
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as under_way:
        for tensor in slow:
            dist.broadcast(tensor, src=1)
    under_way.wait()
    return [t.tolist() for t in tensors + slow]


@_in_a_group
def miss_a_barrier(absent: int) -> str:
    """A monitored barrier that one rank doesn't enter; what the others are told."""
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    if dist.get_rank() == absent:
        # Stay until the others have been told.
        try:
            dist.recv(torch.zeros(1), src=0, tag=9)
        except RuntimeError:
            return "absent"
        return "nobody stopped this rank"
    try:
        group.monitored_barrier(timedelta(seconds=0.5))
    except RuntimeError as error:
        return str(error)
    return "passed"


@_in_a_group
def ask_for_what_is_refused() -> dict[str, str]:
    told = {}
    calls: dict[str, Callable[[], Any]] = {
        "any source": lambda: dist.recv(torch.zeros(1)),
        "bitwise": lambda: dist.all_reduce(torch.zeros(1, dtype=torch.int32), dist.ReduceOp.BXOR),
        "premul": lambda: dist.all_reduce(torch.zeros(1), dist._make_nccl_premul_sum(2.0)),
        "sparse": lambda: dist.all_reduce(torch.eye(2).to_sparse()),
        "types": lambda: dist.all_gather_into_tensor(torch.zeros(2), torch.zeros(1, dtype=torch.int32)),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told
