"""Proof, on the real device and before the first step, that overlapped sync equals plain sync."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta

import torch
from torch import Tensor

from mlrun.allreduce.communicator import Work
from mlrun.backends.torch.lane import Lane
from mlrun.backends.torch.staging.base import CopyStaging, Staged, Staging
from mlrun.backends.torch.work import Completer, GroupWork

SECONDS = 1.5
"""New rounds begin for this long."""

HANG_S = 20.0
_MOST_ELEMENTS = 1 << 20
_MATRIX_SIZES = (256, 512, 1024, 2048, 4096)
_PRODUCT_S = 5e-4


def self_test(staging: Staging, device: torch.device, *, seed: int = 0) -> str | None:
    """What is wrong with ``staging`` on ``device``; None: nothing was found.

    Each round computes buckets of random sizes with work of random length before them in the device's queue,
    has the host double them after random delays while the device computes on, and compares what the device
    then reads with the same buckets doubled the plain way, bit for bit.
    """
    chance = random.Random(seed)
    bench = _Bench(staging, device, chance)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            problem = bench.round()
            if problem is not None or time.monotonic() > deadline:
                return problem
    finally:
        bench.close()


class _Bench:
    def __init__(self, staging: Staging, device: torch.device, chance: random.Random) -> None:
        self._staging = staging
        self._device = device
        self._chance = chance
        self._lane = Lane()
        self._completer = Completer()
        self._engine = ThreadPoolExecutor(1, "mlrun self-test")
        self._matrix = _slow_to_square(device)

    def round(self) -> str | None:
        originals, buckets, works = [], [], []
        for _ in range(self._chance.randint(2, 6)):
            bucket = self._computed()
            originals.append(bucket.clone())
            buckets.append(bucket)
            works.append(self._double(self._staging, bucket))
            works[-1].get_future()
        self._work_on_device()
        try:
            for work in works:
                work.wait(timedelta(seconds=HANG_S))
        except TimeoutError:
            return f"a bucket took more than {HANG_S:g} s"
        read_back = [bucket + 0.0 for bucket in buckets]
        for original in originals:
            self._double(CopyStaging(), original).wait(timedelta(seconds=HANG_S))
        wrong = [int((a != b).sum()) for a, b in zip(originals, read_back, strict=True)]
        if any(wrong):
            return f"overlapped sync gave other values than plain sync ({sum(wrong)} elements)"
        return None

    def _computed(self) -> Tensor:
        """A bucket whose values the device is still computing, in memory that held something else."""
        size = self._chance.randint(1, _MOST_ELEMENTS)
        bucket = torch.full((size,), -1.0, device=self._device)
        return bucket.mul_(self._work_on_device()).add_(float(self._chance.randint(1, 9)))

    def _work_on_device(self) -> Tensor:
        """Keep the device busy for a while; a scalar that depends on it."""
        product = self._matrix
        for _ in range(self._chance.randint(0, 10)):
            product = product @ self._matrix
        return product.abs().mean()

    def _double(self, staging: Staging, bucket: Tensor) -> GroupWork:
        staged = staging.issue([bucket])
        delay_s = self._chance.choice((0.0, 0.0005, 0.003))
        operation = self._lane.start([staged], lambda: _Doubling(self._engine, staged, delay_s))
        return GroupWork([operation], [staged], [bucket], self._completer)

    def close(self) -> None:
        self._lane.close()
        self._completer.close()
        self._engine.shutdown(wait=False)


def _slow_to_square(device: torch.device) -> Tensor:
    """A matrix whose product takes the device longer than it takes the host to ask for it.

    Only a device that lags behind shows what isn't waited for.
    """
    matrix = torch.empty(0)
    for size in _MATRIX_SIZES:
        matrix = torch.randn(size, size, device=device) / size**0.5
        (matrix @ matrix).sum().item()
        start = time.monotonic()
        (matrix @ matrix).sum().item()
        if time.monotonic() - start > _PRODUCT_S:
            break
    return matrix


class _Doubling(Work):
    """What a ring of two equal ranks would do, on a thread of its own."""

    def __init__(self, engine: ThreadPoolExecutor, staged: Staged, delay_s: float) -> None:
        self._future: Future[None] = engine.submit(self._run, staged.host, delay_s)

    @staticmethod
    def _run(host: Tensor, delay_s: float) -> None:
        time.sleep(delay_s)
        host.mul_(2.0)

    def wait(self, timeout_s: float | None = None) -> None:
        if not wait([self._future], timeout_s).done:
            raise TimeoutError
        self._future.result()

    def done(self) -> bool:
        return self._future.done()

    def times(self) -> tuple[float, float] | None:
        return None
