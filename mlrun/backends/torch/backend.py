"""TorchBackend: PyTorch training one model on one rank."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mlrun.allreduce.communicator import Communicator
from mlrun.backends.base import Backend, Evaluation, Shape, Span, StepResult
from mlrun.backends.custom_ops import load_custom_ops
from mlrun.backends.data import in_workdir
from mlrun.backends.learning_rate import LearningRate, base_learning_rate
from mlrun.backends.torch import autoload, checkpoint, custom_ops, replicas
from mlrun.backends.torch.data.sources import make_source
from mlrun.backends.torch.data.splits import Batch
from mlrun.backends.torch.device import autocast, choose_device, device_name, set_threads
from mlrun.backends.torch.device_check import require_agreement
from mlrun.backends.torch.fallbacks import Fallbacks
from mlrun.backends.torch.gradients import AfterBackward, Alone, GradientSync, Overlapped
from mlrun.backends.torch.known_bad import known_bad
from mlrun.backends.torch.models import Sizes, make_model
from mlrun.backends.torch.process_group import MlrunProcessGroup, init_process_group
from mlrun.backends.torch.selected import freeze
from mlrun.backends.torch.tasks import make_task
from mlrun.backends.torch.updates import Updates, load_optimizer_tensors, optimizer_tensors
from mlrun.data.feed import Feed
from mlrun.data.sampler import Sampler, cut, even_shares
from mlrun.errors import RequestError, RunFailedError
from mlrun.probe.system import facts
from mlrun.spec import JobSpec, own_share


class TorchBackend(Backend):
    """Training with stock PyTorch parts.

    Each rank's loss is weighted by its share of the step's samples and gradients are summed over ranks, so
    a step is the same whatever the number of ranks and however unequal their batches. A rank without
    samples takes part with a batch of zeros of weight 0.
    """

    def build(self, spec: JobSpec, communicator: Communicator | None, local_rank: int) -> Shape:
        self._spec = spec
        self._threads = set_threads(spec.threads)
        self._device = choose_device(spec.device, local_rank)
        self._fallbacks = Fallbacks()
        self._examine_device()
        load_custom_ops(spec, custom_ops.flags, custom_ops.load)
        self._task = make_task(spec)
        self.unit = self._task.unit
        self._source = make_source(spec, self._device)
        self._model = make_model(spec, self._sizes()).to(self._device)
        if spec.model.weights is not None:
            checkpoint.load_weights(in_workdir(spec, spec.model.weights), self._model, spec.model.fresh)
        freeze(self._model, spec.model.freeze)
        self._spans: list[Span] = []
        self._left_out = dict.fromkeys(self._source.left_out)
        self._group: MlrunProcessGroup | None = None
        return self._join(communicator)

    def _examine_device(self) -> None:
        if self._device.type == "mps":
            here = facts()
            for each in known_bad(torch.__version__, here["release"], here["chip"]):
                if not each.everywhere:
                    warnings.warn(f"known of this torch, macOS and chip: {each}", stacklevel=3)
            self._fallbacks.watch()
        if self._spec.device_check and self._device.type != "cpu":
            require_agreement(self._device, self._spec.precision)

    def rebind(self, communicator: Communicator | None) -> Shape:
        state = optimizer_tensors(self._updates.optimizer)
        self._leave()
        shape = self._join(communicator)
        load_optimizer_tensors(self._updates.optimizer, state)
        replicas.copy_from_first(self._group, list(optimizer_tensors(self._updates.optimizer).values()))
        return shape

    def _sizes(self) -> Sizes:
        classes = self._spec.data.classes or self._source.classes
        if classes is None and isinstance(self._spec.task, str) and self._spec.task != "regression":
            raise RequestError("data.classes isn't given, and the data doesn't say how many classes it has")
        return Sizes(self._source.sample_shape, classes or 1)

    def _join(self, communicator: Communicator | None) -> Shape:
        """Become a member of ``communicator``; parameters and buffers are those of its rank 0."""
        staging = self._spec.allreduce.staging
        autoload.register()  # where torch's own autoloading of backends was switched off
        self._group = init_process_group(communicator, staging) if communicator is not None else None
        self._rank, self._size = (communicator.rank, communicator.size) if communicator else (0, 1)
        self._sync = self._make_sync()
        self._sampler = Sampler(len(self._source.train), self._shares(), self._spec.seed)
        shape = self._shape()
        self._feed = Feed(
            self._source.train,
            self._sampler,
            rank=self._rank,
            accumulation=self._spec.grad_accumulation,
            place=lambda batch: batch.to(self._device),
        )
        base = base_learning_rate(self._spec, shape.global_batch_size)
        self._rate = LearningRate(self._spec, base, shape.steps_per_epoch, shape.steps_total)
        self._updates = Updates(self._spec, self._model, self._device, self._rate)
        self._step = 0
        self._loss_sum = torch.zeros((), device=self._device)
        self._of_all = shape.global_batch_size
        return shape

    def _make_sync(self) -> GradientSync:
        if self._group is None:
            return Alone(self._model)
        kind = Overlapped if self._spec.allreduce.overlap else AfterBackward
        return kind(self._model, self._group, self._spec.allreduce)

    def _shares(self) -> tuple[int, ...]:
        if self._spec.global_batch_size is not None:
            return even_shares(self._spec.global_batch_size, self._size)
        return replicas.gather(self._group, own_share(self._spec))

    def _shape(self) -> Shape:
        per_epoch = self._sampler.steps_per_epoch
        validation = self._source.validation
        return Shape(
            steps_per_epoch=per_epoch,
            steps_total=self._spec.steps or (self._spec.epochs or 1) * per_epoch,
            batch_size=self._sampler.shares[self._rank],
            global_batch_size=self._sampler.global_batch,
            train_samples=len(self._source.train),
            validation_samples=len(validation) if validation is not None else 0,
            parameters=sum(p.numel() for p in self._model.parameters()),
            data_fingerprint=self._source.fingerprint,
            device=device_name(self._device),
        )

    def step(self, step: int) -> StepResult:
        start = time.monotonic()
        self._step = step
        self._spans = []
        batches = self._readable(self._feed.take(step))
        fetched = time.monotonic()
        self._note("data", start, fetched)
        torch.manual_seed(_drawn(self._spec.seed, step, self._rank))
        kept = self._statistics() if self._spec.on_nonfinite == "skip" else []
        comm_s = self._compute_gradients(step, batches)
        reduced = time.monotonic()
        self._updates.apply(step)
        if kept and not self.applied():
            self._restore(kept)
        end = time.monotonic()
        self._note("optimizer", reduced, end)
        return StepResult(
            samples=sum(batch.count for batch in batches),
            data_s=fetched - start,
            compute_s=end - fetched - comm_s,
            comm_s=comm_s,
        )

    def _compute_gradients(self, step: int, batches: list[Batch]) -> float:
        """Gradients of the step's mean loss over all ranks; seconds only spent waiting for peers."""
        self._loss_sum = torch.zeros((), device=self._device)
        start = time.monotonic()
        self._of_all = self._samples_of_all(step, batches)
        counted_s = time.monotonic() - start
        if not batches:
            self._take_part_empty()
        for index, batch in enumerate(batches):
            is_last = index == len(batches) - 1
            with contextlib.nullcontext() if is_last else self._sync.local():
                self._loss_sum += self._forward_backward(batch, batch.count / self._of_all) * batch.count
        return counted_s + self._sync.finish()

    def _readable(self, batches: list[Batch]) -> list[Batch]:
        """Those with samples left; notes what was left out of each."""
        for batch in batches:
            self._left_out.update(dict.fromkeys(batch.left_out))
        return [batch for batch in batches if batch.count]

    def _samples_of_all(self, step: int, batches: list[Batch]) -> int:
        """Samples of all ranks at ``step``: the sampler's, unless some were left out. Collective then.

        Raises:
            RunFailedError: none is left.
        """
        if self._spec.data.on_bad_file != "skip":
            return len(self._sampler.batch(step))
        (count,) = replicas.total(self._group, [sum(batch.count for batch in batches)])
        if not count:
            raise RunFailedError(f"no sample of step {step} can be read", fix="repair the data")
        return int(count)

    def left_out(self) -> Sequence[str]:
        return list(self._left_out)

    def _forward_backward(self, batch: Batch, weight: float) -> Tensor:
        start = time.monotonic()
        with autocast(self._device, self._spec.precision):
            loss: Tensor = self._task.loss(_outputs(self._sync.module, batch), batch.targets)
        middle = time.monotonic()
        try:
            self._updates.backward(loss * weight)
        except RuntimeError:
            if (error := self._sync.error()) is not None:
                raise error from None
            raise
        end = time.monotonic()
        computed = self._sync.computed_at() or end
        self._note("forward", start, middle)
        self._note("backward", middle, computed)
        self._note("wait", computed, end)
        return loss.detach()

    def _take_part_empty(self) -> None:
        """A pass of weight 0, in evaluation mode, so that no running statistics see the zeros."""
        self._sync.module.eval()
        self._forward_backward(self._feed.empty(), 0.0)
        self._sync.module.train()

    def _note(self, name: str, start: float, end: float) -> None:
        self._spans.append(Span(name, start, end))

    def loss(self) -> float:
        (of_all,) = replicas.total(self._group, [self._loss_sum.item()])
        return of_all / self._of_all

    def applied(self) -> bool:
        """See ``Updates``: exact after each step on the CPU, elsewhere told every ``log_every`` steps."""
        return self._updates.bad_step is None

    def nonfinite(self) -> str | None:
        step = self._updates.bad_step
        if step is None:
            return None
        kept = self._statistics()
        torch.manual_seed(_drawn(self._spec.seed, step, self._rank))
        try:
            return self._first_nonfinite(self._readable(self._feed.again(step)))
        finally:
            self._model.zero_grad(set_to_none=True)
            self._restore(kept)

    def _statistics(self) -> list[Tensor]:
        """A copy of what a forward pass changes besides gradients: BatchNorm's running statistics."""
        return [buffer.clone() for buffer in self._model.buffers()]

    def _restore(self, statistics: list[Tensor]) -> None:
        for buffer, value in zip(self._model.buffers(), statistics, strict=True):
            buffer.copy_(value)

    def _first_nonfinite(self, batches: list[Batch]) -> str | None:
        for batch in batches:
            with autocast(self._device, self._spec.precision):
                loss: Tensor = self._task.loss(_outputs(self._model, batch), batch.targets)
            if not loss.isfinite():
                return "loss"
            loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"gradient of {name}"
        return None

    def spans(self) -> list[Span]:
        return [*self._spans, *self._sync.spans()]

    def learning_rate(self) -> float:
        return self._rate.at(self._step)

    def agree(self) -> None:
        replicas.average_statistics(self._group, self._model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        split = self._source.validation
        self.agree()
        if split is None:
            return Evaluation({}, 0)
        names = ["loss", *self._task.metrics]
        sums = torch.zeros(len(names), device=self._device)
        count = 0
        own = np.array(cut(len(split), self._size, self._rank), dtype=np.int64)
        size = max(1, self._sampler.shares[self._rank] // self._spec.grad_accumulation)
        parts = [(0, own[start : start + size]) for start in range(0, len(own), size)]
        self._model.eval()
        for batch in split.stream(parts):
            for readable in self._readable([batch]):
                sums += self._measure(readable.to(self._device))
                count += readable.count
        self._model.train()
        *totals, samples = replicas.total(self._group, [*(float(s) for s in sums.cpu()), count])
        if not samples:
            raise RunFailedError("no validation sample can be read", fix="repair the data")
        metrics = {name: value / samples for name, value in zip(names, totals, strict=True)}
        return Evaluation(metrics, int(samples))

    def _measure(self, batch: Batch) -> Tensor:
        """The batch's sums of loss and metrics, shape (1 + metrics,)."""
        with autocast(self._device, self._spec.precision):
            outputs = _outputs(self._model, batch)
            loss = self._task.loss(outputs, batch.targets) * batch.count
        others = [metric(outputs, batch.targets) for metric in self._task.metrics.values()]
        return torch.stack([value.to(torch.float32) for value in (loss, *others)])

    def state_hash(self) -> str:
        return checkpoint.state_hash(self._model)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder, self._model, self._updates, self._sizes().outputs)
        if self._source.tokenizer is not None:
            (folder / "tokenizer.json").write_text(self._source.tokenizer, encoding="utf-8")

    def load(self, folder: Path) -> None:
        checkpoint.load(folder, self._model, self._updates)

    def versions(self) -> dict[str, Any]:
        return {
            "framework": "torch",
            "torch": torch.__version__,
            "device": device_name(self._device),
            "threads": self._threads,
            "precision": self._spec.precision,
        }

    def close(self) -> None:
        self._source.close()
        if (fallen_back := self._fallbacks.report()) is not None:
            print(fallen_back)
        self._leave()

    def _leave(self) -> None:
        if self._group is not None:
            dist.destroy_process_group()
            self._group = None


def _outputs(module: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = module(**batch.inputs) if isinstance(batch.inputs, dict) else module(batch.inputs)
    return outputs


def _drawn(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0])
