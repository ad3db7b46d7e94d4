"""Gradients of a GPU through mlrun's ring: are they right, and what do they cost?

Two ranks share one GPU. In one run:

1. The same local gradients are reduced with overlap and the plain way (copied, one after the other), with
   random delays on the GPU and on the host; the results must be equal bit for bit.
2. Steps take turns: mlrun with overlap, mlrun with plain copies, DistributedDataParallel with gloo, no
   synchronisation.
3. Where the buckets' all-reduces lie in the backward pass.
4. A group of one rank against no wrapper at all.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mlrun.backends.torch import autoload
from mlrun.backends.torch.gradients import Overlapped
from mlrun.backends.torch.models import Sizes, make_model
from mlrun.backends.torch.process_group import MlrunProcessGroup
from mlrun.backends.torch.staging.base import CopyStaging
from mlrun.spec import JobSpec
from mlrun.spec.cluster import AllReduce

RANKS = 2
SETTINGS = AllReduce()
BLOCK = 15
"""Steps of one way before the next one's turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="images per rank")
    parser.add_argument("--steps", type=int, default=200, help="steps compared bit for bit")
    parser.add_argument("--blocks", type=int, default=6, help=f"turns of {BLOCK} steps for each way")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=run, args=(rank, asked, folder)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


class Bench:
    """One rank's model, data and groups."""

    def __init__(self, rank: int, asked: argparse.Namespace) -> None:
        self.rank = rank
        self.device = torch.device(asked.device)
        self.chance = random.Random(rank)
        torch.manual_seed(rank)
        spec = JobSpec.model_validate(
            {"name": "gpu-sync", "model": {"name": asked.model}, "batch_size": asked.batch, "steps": 1}
        )
        shape = (3, asked.image_size, asked.image_size)
        self._new_model = lambda: make_model(spec, Sizes(shape, 1000)).to(self.device)
        self.images = torch.randn(asked.batch, *shape, device=self.device)
        self.targets = torch.randint(1000, (asked.batch,), device=self.device)
        self.group = group_of(list(range(RANKS)))

    def model(self) -> nn.Module:
        return self._new_model()

    def step(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, sync: Overlapped | None = None
    ) -> None:
        nn.functional.cross_entropy(module(self.images), self.targets).backward()
        if sync is not None:
            sync.finish()
        optimizer.step()
        optimizer.zero_grad()

    def drain(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def run(rank: int, asked: argparse.Namespace, folder: str) -> None:
    autoload.register()
    torch.backends.cudnn.benchmark = True
    if asked.device == "cpu":
        torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    bench = Bench(rank, asked)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else asked.device
    bench.say(
        f"{asked.model}, batch {asked.batch} per rank, {RANKS} ranks on one {name}, torch {torch.__version__}"
    )
    equal = compare_bits(bench, asked.steps)
    take_turns(bench, asked.blocks)
    alone(bench, asked.blocks)
    dist.barrier()
    dist.destroy_process_group()
    raise SystemExit(0 if equal else 1)


def group_of(ranks: list[int]) -> MlrunProcessGroup:
    group = dist.new_group(ranks, backend="mlrun")
    assert isinstance(group, MlrunProcessGroup)
    return group


# 1. Right? ----------------------------------------------------------------------------------------


def compare_bits(bench: Bench, steps: int) -> bool:
    """True where every bucket of every step was the same both ways."""
    started = time.monotonic()
    model = bench.model()
    reduced: list[tuple[Tensor, Tensor]] = []

    def hook(bucket: Any) -> torch.futures.Future[Tensor]:
        delay(bench)
        reduced.append((bucket.buffer().clone(), bucket.buffer()))
        return bench.group.reduce_bucket(bucket.buffer(), None, f"bucket {bucket.index()}").bucket_future()

    wrapped = DistributedDataParallel(
        model, process_group=bench.group, bucket_cap_mb=SETTINGS.bucket_mb, gradient_as_bucket_view=True
    )
    # A lambda, since DDP takes annotations that are strings for wrong ones.
    wrapped.register_comm_hook(None, lambda _, bucket: hook(bucket))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    compared = different = 0
    for _ in range(steps):
        nn.functional.cross_entropy(wrapped(bench.images), bench.targets).backward()
        seen = [(local, result.clone()) for local, result in reduced]
        reduced.clear()
        with plain_copies(bench.group):
            for index, (local, overlapped) in enumerate(seen):
                bench.group.reduce_bucket(local, None, f"plain bucket {index}").wait()
                compared += 1
                different += not torch.equal(local, overlapped)
        optimizer.step()
        optimizer.zero_grad()
    bench.say(
        f"1. {compared} buckets in {steps} steps with random delays, overlapped against plain: "
        f"{different} differ ({time.monotonic() - started:.0f} s)"
    )
    return compared > 0 and not different


def delay(bench: Bench) -> None:
    """Now and then hold up the host, the GPU's queue, or both."""
    if bench.chance.random() < 0.3:
        time.sleep(bench.chance.uniform(0, 3e-3))
    if bench.device.type == "cuda" and bench.chance.random() < 0.3:
        torch.cuda._sleep(int(bench.chance.uniform(0, 6e6)))  # cycles: up to about 3 ms


@contextlib.contextmanager
def plain_copies(group: MlrunProcessGroup) -> Iterator[None]:
    chosen, group.choose_staging = group.choose_staging, lambda device: CopyStaging()
    try:
        yield
    finally:
        group.choose_staging = chosen


# 2. and 3. What it costs, and where it happens ------------------------------------------------------


def take_turns(bench: Bench, blocks: int) -> None:
    overlapped = Overlapped(bench.model(), bench.group, SETTINGS)
    stepping = {
        "mlrun": stepper(bench, overlapped.module, overlapped),
        "mlrun, plain copies": stepper(bench, overlapped.module, overlapped),
        "no synchronisation": stepper(bench, bench.model()),
    }
    if bench.device.type != "mps":  # gloo takes no tensors of Metal
        gloo = DistributedDataParallel(bench.model(), gradient_as_bucket_view=True)
        stepping["DDP with gloo"] = stepper(bench, gloo)
    times: dict[str, list[float]] = {name: [] for name in stepping}
    for block in range(blocks + 1):
        for name, step in stepping.items():
            way = plain_copies(bench.group) if name.endswith("copies") else contextlib.nullcontext()
            with way:
                seconds = timed(bench, step)
            if block > 0:  # the first turn is warm-up
                times[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in times.items()}
    reference = medians.get("DDP with gloo")
    for name, seconds in medians.items():
        spread = f"{min(times[name]) * 1e3:.1f} to {max(times[name]) * 1e3:.1f}"
        bench.say(
            f"2. {name}: {seconds * 1e3:.1f} ms per step ({spread})"
            + (f", {seconds / reference:.2f} of gloo's" if reference else "")
        )
    trace(bench, overlapped)


def stepper(bench: Bench, module: nn.Module, sync: Overlapped | None = None) -> Callable[[], None]:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    return lambda: bench.step(module, optimizer, sync)


def timed(bench: Bench, step: Callable[[], None], together: bool = True) -> float:
    """Seconds per step over one block."""
    if together:
        dist.barrier()
    bench.drain()
    start = time.monotonic()
    for _ in range(BLOCK):
        step()
    bench.drain()
    return (time.monotonic() - start) / BLOCK


def trace(bench: Bench, sync: Overlapped) -> None:
    begun = inside = buckets = 0
    tails = []
    for _ in range(20):
        dist.barrier()
        bench.drain()
        nn.functional.cross_entropy(sync.module(bench.images), bench.targets).backward()
        computed = sync.computed_at()
        assert computed is not None
        exposed = sync.finish()
        spans = sync.spans()
        buckets += len(spans)
        begun += sum(span.start <= computed for span in spans)
        inside += sum(span.end <= computed for span in spans)
        tails.append(exposed)
        sync.module.zero_grad()
    bench.say(
        f"3. of {buckets} all-reduces in 20 steps {begun} began and {inside} ended before the backward "
        f"pass had computed the last bucket; "
        f"exposed communication {statistics.median(tails) * 1e3:.1f} ms per step (median)"
    )


# 4. Alone -------------------------------------------------------------------------------------------


def alone(bench: Bench, blocks: int) -> None:
    groups = [
        group_of([rank]) if bench.rank == rank else dist.new_group([rank], backend="mlrun") for rank in [0]
    ]
    if bench.rank == 0:
        ours = Overlapped(bench.model(), groups[0], SETTINGS)
        ddp = DistributedDataParallel(bench.model(), process_group=groups[0])
        ways = {
            "no wrapper": stepper(bench, bench.model()),
            "mlrun's wrapper": stepper(bench, ours.module, ours),
            "DDP over mlrun": stepper(bench, ddp),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for block in range(2 * blocks + 1):
            for name, step in ways.items():
                seconds = timed(bench, step, together=False)
                if block > 0:
                    times[name].append(seconds)
        for name, each in times.items():
            ratio = statistics.median(a / b for a, b in zip(each, times["no wrapper"], strict=True))
            bench.say(
                f"4. one rank, {name}: {statistics.median(each) * 1e3:.2f} ms per step, {ratio:.3f} of none's"
            )


if __name__ == "__main__":
    main()
