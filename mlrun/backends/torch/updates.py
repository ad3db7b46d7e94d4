"""The optimizer, and the refusal to apply a gradient that isn't finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mlrun.backends.learning_rate import LearningRate
from mlrun.backends.selected import selected
from mlrun.spec import JobSpec


class Updates:
    """Applies reduced gradients, unless they aren't finite.

    The check is one norm over the gradients, taken on the device; the update depends on it there too, so
    nothing waits. (A norm over 1.8e19 overflows and counts as not finite.) The host reads the outcome after
    each step on the CPU and under ``on_nonfinite: skip``, elsewhere every ``log_every`` steps. Gradients are
    the same bits on every rank, and so is the outcome. fp16 leaves the check to the gradient scaler, for
    which overflow is normal until its scale has fallen below 1.
    """

    def __init__(self, spec: JobSpec, model: nn.Module, device: torch.device, rate: LearningRate) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = _make_optimizer(spec, model)
        self._clip_norm = spec.optimizer.clip_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=spec.precision == "fp16")
        self._rate = rate
        self._last_step = rate.steps_total - 1
        self._checked = spec.on_nonfinite != "ignore" and not self.scaler.is_enabled()
        self._read_every = 1 if device.type == "cpu" or spec.on_nonfinite == "skip" else spec.log_every
        self._first_bad = torch.full((), math.inf, device=device)
        self._bad_step: int | None = None

    @property
    def bad_step(self) -> int | None:
        """The step whose gradient ``apply`` last found not finite, where the host has read of it."""
        return self._bad_step

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def apply(self, step: int) -> None:
        """One optimizer step with the gradients as they are, which are then dropped."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate.at(step)
        self._bad_step = None
        if self._checked:
            self._apply_checked(step)
        else:
            if self._clip_norm is not None:
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scaler.is_enabled() and self._reads(step) and self.scaler.get_scale() < 1.0:
                self._bad_step = step
        self.optimizer.zero_grad(set_to_none=True)

    def _apply_checked(self, step: int) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        bad = (~norm.isfinite()).to(torch.float32)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self._clip_norm, norm)
        self._first_bad = torch.where(bad > 0, self._first_bad.clamp(max=step), self._first_bad)
        # Fused optimizers leave parameters and state alone where found_inf is 1, without telling the host.
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        if self._reads(step):
            first = self._first_bad.item()
            if first != math.inf:
                self._bad_step = int(first)
                self._first_bad.fill_(math.inf)

    def _reads(self, step: int) -> bool:
        return (step + 1) % self._read_every == 0 or step == self._last_step


def _groups(spec: JobSpec, model: nn.Module) -> list[dict[str, Any]]:
    """What is trained, with its names: with weight decay, and without where the spec asks for that."""
    without = selected(dict(model.named_parameters()), spec.optimizer.no_decay, "optimizer.no_decay")
    decays: dict[float, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = 0.0 if name in without else spec.optimizer.weight_decay
            decays.setdefault(decay, []).append((name, parameter))
    return [{"params": decays[decay], "weight_decay": decay} for decay in sorted(decays, reverse=True)]


def _make_optimizer(spec: JobSpec, model: nn.Module) -> torch.optim.Optimizer:
    o, groups = spec.optimizer, _groups(spec, model)
    if o.name == "adamw":
        return torch.optim.AdamW(
            groups, lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.weight_decay, fused=True
        )
    optimizer = torch.optim.SGD(
        groups,
        lr=o.lr,
        momentum=o.momentum,
        nesterov=o.nesterov and o.momentum > 0,
        weight_decay=o.weight_decay,
        fused=True,
    )
    if o.momentum > 0:
        # Without this a first step that isn't applied would leave the momentum uninitialised.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def optimizer_names(optimizer: torch.optim.Optimizer) -> list[str]:
    """The parameters' names in the order of their numbers in ``optimizer_tensors``."""
    return [name for group in optimizer.param_groups for name in group["param_names"]]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as ``<parameter number>.<name>`` -> tensor."""
    states: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, state in states.items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """What ``optimizer_tensors`` gave, put back; groups keep their settings."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
