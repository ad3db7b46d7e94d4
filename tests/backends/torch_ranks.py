"""Ranks as real processes that stay up between tests, and what tests let them do."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ENGINE = os.environ.get("MLRUN_TEST_ENGINE", "ring")
DEADLINE_S = 120


class RankPool:
    """``run(size, function, *args)`` calls ``function(communicator, *args)`` on ranks 0 to size - 1."""

    def __init__(self, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(most):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results in rank order; a rank's exception is raised here with its traceback."""
        outcomes = self.outcomes(size, function, *args)
        for rank, (worked, value) in enumerate(outcomes):
            assert worked, f"rank {rank}:\n{value}"
        return [value for _, value in outcomes]

    def outcomes(self, size: int, function: Callable[..., Any], *args: Any) -> list[tuple[bool, Any]]:
        """(True, result) or (False, traceback) per rank."""
        pipes = self._pipes[:size]
        for rank, pipe in enumerate(pipes):
            pipe.send((rank, size, function, args))
        endpoints = [self._receive(pipe) for pipe in pipes] if size > 1 else []
        secret = secrets.token_hex(32)
        for pipe in pipes if size > 1 else []:
            pipe.send((endpoints, secret))
        return [self._receive(pipe) for pipe in pipes]

    def _receive(self, pipe: Connection) -> Any:
        assert pipe.poll(DEADLINE_S), f"a rank hasn't answered for {DEADLINE_S} s"
        return pipe.recv()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection) -> None:
    import torch  # noqa: PLC0415 - not in the parent

    torch.set_num_threads(1)
    # Where ranks share a GPU, results must be comparable down to rounding.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    while True:
        try:
            rank, size, function, args = pipe.recv()
        except EOFError:
            return
        communicator = _connect(pipe, rank, size) if size > 1 else None
        try:
            pipe.send((True, function(communicator, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            if communicator is not None:
                communicator.close()


def _connect(pipe: Connection, rank: int, size: int) -> Any:
    from mlrun.allreduce.engines import connect  # noqa: PLC0415
    from mlrun.allreduce.links import Listener  # noqa: PLC0415
    from mlrun.protocol import Plan  # noqa: PLC0415

    listener = Listener(["127.0.0.1"])
    pipe.send(listener.endpoints)
    endpoints, secret = pipe.recv()
    settings = {"entry_timeout_s": 60.0, "progress_timeout_s": 30.0, "heartbeat_s": 10.0, "links": 1}
    plan = Plan(0, ENGINE, endpoints, [f"host{r}" for r in range(size)], settings)
    return connect(plan, rank, listener, secret)


def train(communicator: Any, spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train ``steps`` steps and tell all there is to compare."""
    from mlrun.backends.torch.backend import TorchBackend  # noqa: PLC0415
    from mlrun.spec import JobSpec  # noqa: PLC0415

    backend = TorchBackend()
    shape = backend.build(JobSpec.model_validate(spec), communicator, 0)
    losses, samples, spans = [], [], []
    for step in range(steps):
        samples.append(backend.step(step).samples)
        assert backend.applied()
        losses.append(backend.loss())
        spans.append([(s.name, s.start, s.end) for s in backend.spans()])
    evaluation = backend.evaluate()
    with tempfile.TemporaryDirectory() as folder:
        backend.save(Path(folder))
        model = (Path(folder) / "model.safetensors").read_bytes()
    result = {
        "shape": shape,
        "losses": losses,
        "samples": samples,
        "spans": spans,
        "evaluation": evaluation,
        "hash": backend.state_hash(),
        "model": model,
    }
    backend.close()
    return result


def train_unequal(communicator: Any, spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """``train`` with 8 samples on rank 0 and 16 on rank 1."""
    own = {**spec, "batch_size": 8 * (communicator.rank + 1), "global_batch_size": None}
    return train(communicator, own, steps)


def train_with_nan_on(communicator: Any, bad_rank: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Two steps, the second of which meets a NaN in ``bad_rank``'s samples."""
    backend = _build(communicator, {**spec, "log_every": 1})
    backend.step(0)
    applied = [backend.applied()]
    before = backend.state_hash()
    if communicator.rank == bad_rank:
        backend._source.train.inputs.fill_(float("nan"))
    backend.step(1)
    applied.append(backend.applied())
    unchanged = backend.state_hash() == before
    return {"applied": applied, "culprit": backend.nonfinite(), "unchanged": unchanged}


def train_until_aborted(communicator: Any, spec: dict[str, Any]) -> None:
    backend = _build(communicator, spec)
    backend.step(0)
    if communicator.rank == 1:
        communicator.abort("the test pulled the plug")
    for step in range(1, 5):
        backend.step(step)


def train_then_alone(communicator: Any, spec: dict[str, Any]) -> list[float]:
    """Three steps together, three on each rank's own."""
    backend = _build(communicator, spec)
    losses = [_loss_of(backend, step) for step in range(3)]
    backend.rebind(None)
    return losses + [_loss_of(backend, step) for step in range(3, 6)]


def _build(communicator: Any, spec: dict[str, Any]) -> Any:
    from mlrun.backends.torch.backend import TorchBackend  # noqa: PLC0415
    from mlrun.spec import JobSpec  # noqa: PLC0415

    backend = TorchBackend()
    backend.build(JobSpec.model_validate(spec), communicator, 0)
    return backend


def _loss_of(backend: Any, step: int) -> float:
    backend.step(step)
    return float(backend.loss())


def use_collectives(communicator: Any) -> dict[str, Any]:
    """One of each, through torch.distributed's own functions, on three ranks."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from mlrun.backends.torch.process_group import init_process_group  # noqa: PLC0415

    init_process_group(communicator)
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}

    summed = torch.full((2,), float(rank + 1))
    work = dist.all_reduce(summed, async_op=True)
    work.get_future().wait()
    found["sum"] = summed.tolist()

    most = torch.tensor(rank + 1)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    found["max"] = int(most)

    number = torch.tensor([1 + 2j if rank == 0 else 0j], dtype=torch.complex64)
    dist.broadcast(number, src=0)
    found["broadcast"] = f"complex64 {number.item()}"

    gathered = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(gathered, torch.tensor([rank + 1.0]))
    found["gathered"] = [t.tolist() for t in gathered]

    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, f"rank {rank}")
    found["objects"] = objects

    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.arange(size, dtype=torch.float32))
    found["reduce_scatter"] = part.item()

    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, 10.0 * rank + torch.arange(size))
    found["all_to_all"] = swapped.tolist()

    left = torch.zeros(1)
    received = dist.irecv(left, src=(rank - 1) % size)
    dist.send(torch.tensor([float(rank)]), dst=(rank + 1) % size)
    received.wait()
    found["from_left"] = left.item()

    strided = torch.full((2, 2), float(rank + 1))
    dist.all_reduce(strided[:, 0])
    found["strided"] = strided[:, 0].tolist()

    collected = [torch.zeros(1) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.tensor([float(rank)]), collected, dst=1)
    found["gathered_on_1"] = None if collected is None else [t.item() for t in collected]

    given = torch.zeros(1)
    dist.scatter(given, [torch.tensor([100.0 + r]) for r in range(size)] if rank == 0 else None, src=0)
    found["scattered"] = given.item()
    dist.barrier()
    return found


def step_with_hook(communicator: Any, hook: str) -> str:
    """A step of DDP with a hook of torch's, or one of one's own; the error's text, or ``done``."""
    import importlib  # noqa: PLC0415

    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    from mlrun.backends.torch.process_group import init_process_group  # noqa: PLC0415

    group = init_process_group(communicator)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    module, _, name = hook.rpartition(".")
    if hook == "own":
        state: Any = group
        chosen: Any = _reduces_in_a_callback
    else:
        chosen = getattr(
            importlib.import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{module}"), name
        )
        needs_state = module == "powerSGD_hook"
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2) if needs_state else group
    model.register_comm_hook(state, chosen)
    try:
        model(torch.ones(4, 64)).sum().backward()
    except Exception as error:
        return str(error)
    finally:
        communicator.abort("the test is over")
        dist.destroy_process_group()
    return "done"


def _reduces_in_a_callback(group, bucket):  # type: ignore[no-untyped-def]
    import threading  # noqa: PLC0415

    import torch.distributed as dist  # noqa: PLC0415

    attached = threading.Event()
    group._completer.submit(lambda: attached.wait(DEADLINE_S))  # a completed future would call back at once
    first = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    then = first.then(lambda future: dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0])
    attached.set()
    return then
