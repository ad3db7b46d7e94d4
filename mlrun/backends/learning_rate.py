"""The learning rate at each step, whatever the framework."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlrun.spec import JobSpec


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the step alone: warm-up from 0, then the spec's schedule."""

    spec: JobSpec
    base: float
    steps_per_epoch: int
    steps_total: int

    def at(self, step: int) -> float:
        schedule = self.spec.lr_schedule
        if step < schedule.warmup_steps:
            return self.base * (step + 1) / schedule.warmup_steps
        if schedule.name == "step":
            passed = sum(step >= epoch * self.steps_per_epoch for epoch in schedule.step_epochs)
            return self.base * schedule.gamma**passed
        if schedule.name == "cosine":
            share = (step - schedule.warmup_steps) / max(1, self.steps_total - schedule.warmup_steps)
            low = schedule.min_lr
            return low + (self.base - low) * (1 + math.cos(math.pi * min(1.0, share))) / 2
        return self.base


def base_learning_rate(spec: JobSpec, global_batch: int) -> float:
    """``optimizer.lr``, scaled as ``lr_scale`` says by how much the global batch outgrew the spec's own.

    The spec's own batch is ``global_batch_size``, which never grows, or what one worker takes per optimizer
    step (``batch_size`` x ``grad_accumulation``): ``linear`` multiplies by the number of equal workers.
    """
    own = spec.global_batch_size or (spec.batch_size or 1) * spec.grad_accumulation
    growth = global_batch / own
    return spec.optimizer.lr * {"none": 1.0, "linear": growth, "sqrt": math.sqrt(growth)}[spec.lr_scale]
