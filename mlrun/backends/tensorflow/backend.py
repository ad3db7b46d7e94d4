"""TensorFlowBackend: TensorFlow training one Keras model on one rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mlrun.allreduce.communicator import Communicator, DType, Op
from mlrun.backends.base import Backend, Evaluation, Shape, Span, StepResult
from mlrun.backends.custom_ops import load_custom_ops
from mlrun.backends.data import in_workdir
from mlrun.backends.learning_rate import LearningRate, base_learning_rate
from mlrun.backends.selected import selected
from mlrun.backends.tensorflow import checkpoint, custom_ops, replicas
from mlrun.backends.tensorflow.data import make_source
from mlrun.backends.tensorflow.device import configure, threads
from mlrun.backends.tensorflow.device_check import require_agreement
from mlrun.backends.tensorflow.gradients import ReducedGradients, Step
from mlrun.backends.tensorflow.models import Sizes, make_model
from mlrun.backends.tensorflow.optimizer import make_optimizer
from mlrun.backends.tensorflow.tasks import make_task
from mlrun.backends.tensorflow.training import Training, evaluation
from mlrun.data.feed import Feed
from mlrun.data.sampler import Sampler, cut, even_shares
from mlrun.errors import RequestError
from mlrun.probe.metal_plugins import installed
from mlrun.probe.versions import versions
from mlrun.spec import JobSpec, own_share

_WIRE = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16, None: None}
_MIB = 1 << 20


class TensorFlowBackend(Backend):
    """Training with Keras' model and optimizer in one graph per step.

    Samples, their order, and what each rank's loss weighs are as under PyTorch, so a step is the same
    whatever the number of ranks and however unequal their batches.
    """

    def build(self, spec: JobSpec, communicator: Communicator | None, local_rank: int) -> Shape:
        self._spec = spec
        self._device = configure(spec, local_rank)
        if spec.device_check and self._device != "CPU":
            require_agreement("/GPU:0")
        load_custom_ops(spec, custom_ops.flags, custom_ops.load)
        self._task = make_task(spec)
        self.unit = self._task.unit
        self._source = make_source(spec)
        self._model = make_model(spec, self._sizes())
        self._model(self._source.train.fetch(np.zeros(1, dtype=np.int64), 0).inputs)  # makes all variables
        if spec.model.fresh:
            raise RequestError("model.fresh isn't there for framework: tensorflow", fix="remove it")
        if spec.model.weights is not None:
            checkpoint.load_weights(in_workdir(spec, spec.model.weights), self._model)
        self._freeze()
        self._optimizer = make_optimizer(spec, self._model.trainable_variables)
        self._seeds = [v for v in self._model.variables if v.path.endswith("seed_generator_state")]
        return self._join(communicator)

    def rebind(self, communicator: Communicator | None) -> Shape:
        return self._join(communicator)

    def _sizes(self) -> Sizes:
        classes = self._spec.data.classes or self._source.classes
        if classes is None and isinstance(self._spec.task, str) and self._spec.task != "regression":
            raise RequestError("data.classes isn't given, and the data doesn't say how many classes it has")
        return Sizes(self._source.sample_shape, classes or 1)

    def _freeze(self) -> None:
        variables = checkpoint.named(self._model.trainable_variables)
        for name in selected(variables, self._spec.model.freeze, "model.freeze"):
            variables[name].trainable = False
        if not self._model.trainable_variables:
            raise RequestError("model.freeze: no parameter is left to train", fix="freeze fewer")

    def _join(self, communicator: Communicator | None) -> Shape:
        """Become a member of ``communicator``; weights and optimizer are those of its rank 0."""
        settings = self._spec.allreduce
        self._communicator = communicator
        self._rank, self._size = (communicator.rank, communicator.size) if communicator else (0, 1)
        replicas.copy_from_first(communicator, [*self._model.weights, *self._optimizer.variables])
        self._reduced = None
        if communicator is not None:
            self._reduced = ReducedGradients(
                communicator,
                int(settings.bucket_mb * _MIB),
                op=Op.SUM,
                wire=_WIRE[settings.wire_dtype],
                overlap=settings.overlap,
            )
        checked = self._spec.on_nonfinite != "ignore" and self._spec.precision != "fp16"
        self._training = Training(self._model, self._task, self._optimizer, self._reduced, checked=checked)
        self._measured = evaluation(self._model, [self._task.loss, *self._task.metrics.values()])
        self._sampler = Sampler(len(self._source.train), self._shares(), self._spec.seed)
        self._feed = Feed(
            self._source.train,
            self._sampler,
            rank=self._rank,
            accumulation=self._spec.grad_accumulation,
            place=lambda batch: batch,
        )
        shape = self._shape()
        base = base_learning_rate(self._spec, shape.global_batch_size)
        self._rate = LearningRate(self._spec, base, shape.steps_per_epoch, shape.steps_total)
        self._step, self._told, self._loss_sum, self._applied = 0, Step(), 0.0, True
        self._spans: list[Span] = []
        return shape

    def _shares(self) -> tuple[int, ...]:
        if self._spec.global_batch_size is not None:
            return even_shares(self._spec.global_batch_size, self._size)
        return replicas.gather(self._communicator, own_share(self._spec))

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
            parameters=sum(int(np.prod(v.shape)) for v in self._model.trainable_variables),
            data_fingerprint=self._source.fingerprint,
            device=self._device,
        )

    def step(self, step: int) -> StepResult:
        start = time.monotonic()
        self._step = step
        batches = self._feed.take(step)
        fetched = time.monotonic()
        self._seed(step)
        self._optimizer.learning_rate = self._rate.at(step)
        kept = self._statistics() if self._spec.on_nonfinite == "skip" else []
        self._told = self._reduced.begin() if self._reduced is not None else Step()
        try:
            if batches:
                samples = len(self._sampler.batch(step))
                self._loss_sum, self._applied = self._training.step(batches, samples)
            else:
                self._loss_sum = 0.0
                self._applied = self._training.step_without_samples(self._feed.empty())
        except tf.errors.OpError:
            if self._told.error is not None:
                raise self._told.error from None
            raise
        if self._spec.precision == "fp16":
            self._applied = float(self._optimizer.dynamic_scale) >= 1.0
        if not self._applied:
            self._restore(kept)
        end = time.monotonic()
        self._note_spans(start, fetched, end)
        return StepResult(
            samples=sum(batch.count for batch in batches),
            data_s=fetched - start,
            compute_s=end - fetched - self._told.waited_s,
            comm_s=self._told.waited_s,
        )

    def _seed(self, step: int) -> None:
        """Dropout of a step depends on (seed, step, rank) alone."""
        drawn = np.random.SeedSequence((self._spec.seed, step, self._rank)).generate_state(2)
        for number, variable in enumerate(self._seeds):
            variable.assign((drawn + np.uint32(number)).astype(variable.dtype))

    def _note_spans(self, start: float, fetched: float, end: float) -> None:
        own = self._told.spans()
        forward = self._training.forward_until or fetched
        reduced = self._told.waits[-1][1] if self._told.waits else end
        computed = self._told.waits[0][0] if self._told.waits else end
        self._spans = [
            Span("data", start, fetched),
            Span("forward", fetched, forward),
            Span("backward", forward, computed),
            *own,
            Span("optimizer", reduced, end),
        ]

    def loss(self) -> float:
        (of_all,) = replicas.total(self._communicator, [self._loss_sum])
        return of_all / len(self._sampler.batch(self._step))

    def applied(self) -> bool:
        """Exact after each step; under fp16 False once the loss scale has fallen below 1."""
        return self._applied

    def nonfinite(self) -> str | None:
        kept = self._statistics()
        self._seed(self._step)
        try:
            return self._training.first_nonfinite(self._feed.again(self._step))
        finally:
            self._restore(kept)

    def _statistics(self) -> list[tuple[Any, Any]]:
        """A copy of what a forward pass changes besides gradients: BatchNorm's running statistics."""
        return [(v, v.numpy()) for v in self._model.non_trainable_weights]

    def _restore(self, statistics: list[tuple[Any, Any]]) -> None:
        for variable, value in statistics:
            variable.assign(value)

    def spans(self) -> list[Span]:
        return self._spans

    def learning_rate(self) -> float:
        return self._rate.at(self._step)

    def agree(self) -> None:
        own = [v for v in self._model.non_trainable_weights if "float" in v.dtype]
        replicas.average(self._communicator, own)

    def evaluate(self) -> Evaluation:
        split = self._source.validation
        self.agree()
        if split is None:
            return Evaluation({}, 0)
        names = ["loss", *self._task.metrics]
        sums = np.zeros(len(names))
        own = np.array(cut(len(split), self._size, self._rank), dtype=np.int64)
        size = max(1, self._sampler.shares[self._rank] // self._spec.grad_accumulation)
        for batch in split.stream([(0, own[at : at + size]) for at in range(0, len(own), size)]):
            measured = self._measured(batch.inputs, batch.targets).numpy().astype(np.float64)
            sums += measured * [batch.count, *(1.0 for _ in self._task.metrics)]
        totals = replicas.total(self._communicator, list(sums))
        metrics = {name: value / len(split) for name, value in zip(names, totals, strict=True)}
        return Evaluation(metrics, len(split))

    def state_hash(self) -> str:
        return checkpoint.state_hash(self._model)

    def save(self, folder: Path) -> None:
        sizes = self._sizes()
        checkpoint.save(folder, self._model, self._optimizer, sizes.sample_shape, sizes.outputs)

    def load(self, folder: Path) -> None:
        checkpoint.load(folder, self._model, self._optimizer)

    def versions(self) -> dict[str, Any]:
        return {
            "framework": "tensorflow",
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "plugin": ", ".join(installed(versions())) or None,
            "device": self._device,
            "threads": threads(self._spec),
            "precision": self._spec.precision,
        }

    def close(self) -> None:
        del self._feed
