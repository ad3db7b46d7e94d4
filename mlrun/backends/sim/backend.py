"""SimBackend: computes by sleeping, communicates for real."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, DType, Op, Work
from mlrun.backends.base import Backend, Evaluation, Shape, Span, StepResult
from mlrun.backends.sim.profiles import profile
from mlrun.errors import RequestError
from mlrun.spec import JobSpec, batch_shares, own_share

FORWARD_SHARE = 1 / 3
"""Of a step: a backward pass computes two products for each one of the forward pass."""

TRAIN_SAMPLES = 50_000
"""Where the spec doesn't say ``data.samples``."""

_WIRE = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, None: None}


class SimBackend(Backend):
    """A worker of stated speed.

    A step sleeps through the forward pass, then to the moment at which each gradient bucket would be
    ready, and hands the bucket to the communicator. "Gradients" start as the rank's number and are
    averaged in place, so they become, and stay, the same on every rank: they are the state that is hashed.
    """

    def build(self, spec: JobSpec, communicator: Communicator | None, local_rank: int) -> Shape:
        self._spec = spec
        self._profile = profile(spec.model.name)
        self.unit = self._profile.unit
        self._step = 0
        self._spans: list[Span] = []
        rank = communicator.rank if communicator is not None else 0
        self._buckets = self._profile.buckets(spec.allreduce.bucket_mb)
        self._gradients = [np.full(bucket.elements, rank, np.float32) for bucket in self._buckets]
        return self.rebind(communicator)

    def rebind(self, communicator: Communicator | None) -> Shape:
        self._communicator = communicator
        self._rank, self._size = (communicator.rank, communicator.size) if communicator else (0, 1)
        self._samples_per_second = self._speed()
        shares = self._shares()
        samples = self._spec.data.samples or TRAIN_SAMPLES
        self._batch_size = shares[self._rank]
        per_epoch = -(-samples // sum(shares))
        return Shape(
            steps_per_epoch=per_epoch,
            steps_total=self._spec.steps or (self._spec.epochs or 1) * per_epoch,
            batch_size=self._batch_size,
            global_batch_size=sum(shares),
            train_samples=samples,
            validation_samples=0,
            parameters=self._profile.parameters,
            data_fingerprint=f"simulated {samples}",
            device="simulated",
        )

    def _shares(self) -> list[int]:
        """Samples of each rank per step. Collective."""
        if self._spec.global_batch_size is not None:
            return batch_shares(self._spec, self._size)
        if self._communicator is None:
            return [own_share(self._spec)]
        own, every = np.array([own_share(self._spec)]), np.zeros(self._size, np.int64)
        self._communicator.all_gather(Buffer.of(own), Buffer.of(every), name="batch sizes").wait()
        return [int(share) for share in every]

    def _speed(self) -> float:
        given = self._spec.sim.samples_per_second
        if not isinstance(given, list):
            return given
        if len(given) != self._size:
            raise RequestError(
                f"sim.samples_per_second has {len(given)} speeds, and the run {self._size} workers",
                fix="give one number for all, or one for each worker",
            )
        return given[self._rank]

    def step(self, step: int) -> StepResult:
        start = time.monotonic()
        self._step = step
        whole = self._batch_size / self._samples_per_second * self._luck(step)
        forward, backward = whole * FORWARD_SHARE, whole * (1 - FORWARD_SHARE)
        works: list[Work] = []
        for index, bucket in enumerate(self._buckets):
            _sleep_until(start + forward + backward * bucket.ready)
            if self._spec.allreduce.overlap:
                works += self._reduce(index)
        computed = time.monotonic()
        if not self._spec.allreduce.overlap:
            works = [work for index in range(len(self._buckets)) for work in self._reduce(index)]
        for work in works:
            work.wait()
        end = time.monotonic()
        self._spans = [
            Span("forward", start, start + forward),
            Span("backward", start + forward, computed),
            Span("wait", computed, end),
            *(
                Span(f"all_reduce:{index}", *times)
                for index, times in enumerate(work.times() for work in works)
                if times is not None
            ),
        ]
        return StepResult(self._batch_size, 0.0, computed - start, end - computed)

    def _luck(self, step: int) -> float:
        """This step's time over the usual one."""
        if not self._spec.sim.jitter:
            return 1.0
        drawn = np.random.default_rng((self._spec.seed, step, self._rank)).standard_normal()
        return max(0.0, 1.0 + self._spec.sim.jitter * float(drawn))

    def _reduce(self, index: int) -> list[Work]:
        if self._communicator is None:
            return []
        wire = _WIRE[self._spec.allreduce.wire_dtype]
        buffer = Buffer.of(self._gradients[index])
        return [self._communicator.all_reduce(buffer, Op.AVERAGE, wire, f"gradient bucket {index}")]

    def loss(self) -> float | None:
        return None

    def applied(self) -> bool:
        return True

    def nonfinite(self) -> str | None:
        return None

    def spans(self) -> list[Span]:
        return self._spans

    def learning_rate(self) -> float:
        return self._spec.optimizer.lr

    def evaluate(self) -> Evaluation:
        return Evaluation({}, 0)

    def state_hash(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for gradient in self._gradients:
            digest.update(gradient.data)
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """The averaged value alone: all elements are equal."""
        np.save(folder / "simulated.npy", np.array([gradient[0] for gradient in self._gradients]))

    def load(self, folder: Path) -> None:
        try:
            values = np.load(folder / "simulated.npy")
        except (OSError, ValueError) as error:
            raise RequestError(f"{folder} holds no state of a simulated run: {error}") from error
        if len(values) != len(self._gradients):
            raise RequestError(f"{folder} was made with other buckets: another model, or allreduce.bucket_mb")
        for gradient, value in zip(self._gradients, values, strict=True):
            gradient.fill(value)

    def versions(self) -> dict[str, Any]:
        return {"framework": "sim", "device": "simulated", "samples_per_second": self._samples_per_second}

    def close(self) -> None:
        self._gradients = []


def _sleep_until(moment: float) -> None:
    """By an absolute time, so that late wake-ups don't add up."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
