"""What the ranks of these tests do: as a script written for Horovod would."""

from __future__ import annotations

import sys
from typing import Any

import torch

from mlrun import horovod as stand_in
from mlrun.allreduce import own
from mlrun.allreduce.communicator import Communicator


def _hvd(communicator: Communicator) -> Any:
    """``horovod.torch`` as a script imports it."""
    if str(stand_in.MODULES) not in sys.path:
        stand_in.install()
    own.lend(communicator)
    import horovod.torch as hvd  # type: ignore[import-not-found]  # noqa: PLC0415

    hvd.shutdown()
    hvd.init()
    return hvd


def collectives(communicator: Communicator) -> dict[str, Any]:
    """One of each; rank r holds r + 1."""
    hvd = _hvd(communicator)
    rank, size = hvd.rank(), hvd.size()
    own = torch.full((2,), float(rank + 1))
    found: dict[str, Any] = {"where": (rank, size, hvd.local_size() >= 1)}
    found["average"] = hvd.allreduce(own, name="mean").tolist()
    found["sum"] = hvd.allreduce(own, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist()
    found["old average"] = hvd.allreduce(own, average=False).tolist()
    found["fp16"] = hvd.allreduce(own, compression=hvd.Compression.fp16).dtype
    found["kept"] = own.tolist()
    handle = hvd.allreduce_async_(own.clone(), op=hvd.Max)
    found["max"] = hvd.synchronize(handle).tolist()
    found["polled"] = hvd.poll(handle)
    grouped = hvd.grouped_allreduce([own, torch.tensor([rank], dtype=torch.int64)], op=hvd.Sum)
    found["grouped"] = [t.tolist() for t in grouped]
    found["gathered"] = hvd.allgather(torch.full((rank + 1, 2), rank)).tolist()
    found["broadcast"] = hvd.broadcast(own, root_rank=1).tolist()
    sent = torch.arange(3, dtype=torch.float32) + 10 * rank
    came, counts = hvd.alltoall(sent, splits=[1, 2] if rank == 0 else [3, 0])
    found["alltoall"] = came.tolist(), counts.tolist()
    found["even rows"] = hvd.reducescatter(torch.arange(4.0), op=hvd.Sum).tolist()
    found["uneven rows"] = hvd.reducescatter(torch.arange(3.0), op=hvd.Sum).tolist()
    found["object"] = hvd.broadcast_object({"from": rank}, root_rank=1)
    found["objects"] = hvd.allgather_object("x" * rank)
    hvd.barrier()
    return found


def refusals(communicator: Communicator) -> dict[str, str]:
    """What can't be had, and what it says."""
    hvd = _hvd(communicator)
    import horovod  # noqa: PLC0415

    model = torch.nn.Linear(1, 1)
    attempts = {
        "Adasum": lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum),
        "process set": lambda: hvd.ProcessSet([0]),
        "adding one": lambda: hvd.add_process_set([0]),
        "SyncBatchNorm": lambda: hvd.SyncBatchNorm(3),
        "run": lambda: horovod.run(print, np=2),
        "op and average": lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum),
        "same name twice": lambda: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), [("a", model.weight), ("a", model.bias)]
        ),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (NotImplementedError, AttributeError, ValueError) as error:
            said[name] = str(error)
    return said


def gradient_through(communicator: Communicator) -> tuple[list[float], list[float]]:
    """Of a loss that is this rank's own on the mean of all, and on what all have gathered."""
    hvd = _hvd(communicator)
    weight = torch.ones(2, requires_grad=True)
    (hvd.allreduce(weight) * (hvd.rank() + 1)).sum().backward()
    of_mean, weight.grad = weight.grad, None
    (hvd.allgather(weight) * torch.arange(4.0)).sum().backward()
    assert of_mean is not None
    assert weight.grad is not None
    return of_mean.tolist(), weight.grad.tolist()


def _model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def _batch(step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(rows, 6, generator=draw), torch.randint(0, 3, (rows,), generator=draw)


def trained_alone(steps: int, passes: int = 1) -> list[list[float]]:
    """On the joint batch of both ranks."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            inputs, targets = _batch(step * passes + each)
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return [p.flatten().tolist() for p in model.parameters()]


def trained(
    communicator: Communicator, steps: int, passes: int, options: dict[str, Any]
) -> list[list[float]]:
    """Each rank on its half; their weights differ before they are broadcast."""
    hvd = _hvd(communicator)
    model = _model()
    if hvd.rank():
        torch.nn.init.ones_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1 if hvd.rank() == 0 else 5.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if options.pop("fp16", False):
        options["compression"] = hvd.Compression.fp16
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=passes, **options
    )
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            inputs, targets = _batch(step * passes + each)
            own = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
            torch.nn.functional.cross_entropy(model(inputs[own]), targets[own]).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
    return [p.flatten().tolist() for p in model.parameters()]


def unused_parameters(communicator: Communicator) -> list[float]:
    """Each rank uses another one of two weights; the gradients that ``step`` saw."""
    hvd = _hvd(communicator)
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, 1.0), op=hvd.Sum)
    (weights[hvd.rank()] * 3).sum().backward()
    optimizer.step()
    return [float(w) for w in weights]


def misused_optimizer(communicator: Communicator) -> list[str]:
    hvd = _hvd(communicator)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    weight.sum().backward()
    said = []
    for misuse in (optimizer.zero_grad, lambda: weight.sum().backward()):
        try:
            misuse()
        except AssertionError as error:
            said.append(str(error))
    optimizer.step()
    return said


def joined_early(communicator: Communicator) -> tuple[list[float], int]:
    """Rank 0 has one batch, rank 1 three; the sums each saw, and the last to join."""
    hvd = _hvd(communicator)
    sums = [float(hvd.allreduce(torch.ones(3), op=hvd.Sum)[0]) for _ in range(1 + 2 * hvd.rank())]
    return sums, hvd.join()


def gathers_after_a_join(communicator: Communicator) -> str:
    hvd = _hvd(communicator)
    try:
        if hvd.rank() == 0:
            hvd.join()
        else:
            hvd.allgather(torch.ones(1))
    except hvd.HorovodInternalError as error:
        return str(error)
    return "done"


def elastic(communicator: Communicator) -> tuple[int, list[float]]:
    hvd = _hvd(communicator)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(hvd.rank()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @hvd.elastic.run
    def train(state: Any) -> int:
        state.commit()
        return int(state.epoch)

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=hvd.rank() + 5)
    return train(state), model.weight.flatten().tolist()
