"""Whether a GPU computes what the CPU does: forward and backward passes of common layers, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlrun.backends.torch.device import autocast
from mlrun.errors import RefusedError

TOLERANCE = {"fp32": 2e-3, "bf16": 6e-2, "fp16": 2e-2}
"""Largest distance from the CPU's fp32 values, relative to their norm."""

LARGE_ROWS = 33_000
"""Above 32 767, where some Macs' matrix products went wrong in the backward pass."""


@dataclass(frozen=True)
class Layer:
    """``shape`` is one sample's; ``batches`` are run in turn, since some errors need another size before."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batches: tuple[int, ...] = (8, 3, 8)
    loss: Callable[[Tensor], Tensor] = lambda outputs: (outputs * torch.cos(outputs.detach())).mean()
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Finding:
    """One layer in one precision; ``difference`` is relative, None where it couldn't run."""

    layer: str
    precision: str
    worst: str
    """The value that differs most: output, input's gradient, or a parameter's."""
    difference: float | None
    tolerance: float
    problem: str | None = None

    @property
    def agrees(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.layer} ({self.precision}): {self.problem}"
        return (
            f"{self.layer} ({self.precision}): {self.worst} differs by {self.difference:.1e} "
            f"of its size (allowed {self.tolerance:.0e})"
        )


class _Attention(nn.Module):
    """Causal self-attention; unlike ``nn.MultiheadAttention`` always through the fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.project(inputs).chunk(3, dim=-1)
        )
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(inputs)[0]
        return outputs


def _convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.Tanh(),
        nn.Conv2d(16, 8, 3, stride=2),
    )


LAYERS = (
    Layer("convolution and BatchNorm", _convolution, (3, 16, 16)),
    Layer("linear", lambda: nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)), (64,)),
    Layer("linear under a plain sum", lambda: nn.Linear(64, 48), (64,), loss=Tensor.sum),
    Layer("attention", _Attention, (12, 32)),
    Layer("LSTM", _Lstm, (10, 16)),
    Layer(
        "linear with many rows", lambda: nn.Linear(16, 8), (16,), (64, LARGE_ROWS, 64), precisions=("fp32",)
    ),
    Layer(
        "batched matmul with many rows",
        lambda: nn.Linear(16, 8),
        (LARGE_ROWS // 4, 16),
        (1, 4, 1),
        precisions=("fp32",),
    ),
)


def device_check(device: torch.device, precisions: Collection[str] = tuple(TOLERANCE)) -> list[Finding]:
    """Every layer in each of ``precisions`` on ``device``, against fp32 on the CPU. A few seconds."""
    kept = torch.get_rng_state()
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            return [
                _compare(layer, precision, device)
                for layer in LAYERS
                for precision in layer.precisions
                if precision in precisions
            ]
    finally:
        torch.set_rng_state(kept)


def require_agreement(device: torch.device, precision: str) -> None:
    """Check fp32 and ``precision``.

    Raises:
        RefusedError: a layer's gradients on ``device`` aren't those of the CPU; the message names it.
    """
    wrong = [finding for finding in device_check(device, {"fp32", precision}) if not finding.agrees]
    if wrong:
        raise RefusedError(
            f"{device} doesn't compute what the CPU does: " + "; ".join(map(str, wrong)),
            fix="update macOS and torch, or set device: cpu; mlrun doctor --device-check shows every layer",
        )


def _compare(layer: Layer, precision: str, device: torch.device) -> Finding:
    torch.manual_seed(0)
    reference = layer.make()
    # Converted before it is copied: no draw happens on the device, whose generator is another.
    examined = copy.deepcopy(reference).to(device)
    tolerance = TOLERANCE[precision]
    worst, difference = "output", 0.0
    try:
        for batch in layer.batches:
            inputs = torch.randn(batch, *layer.shape)
            expected = _values(reference, inputs, layer, torch.device("cpu"), "fp32")
            got = _values(examined, inputs, layer, device, precision)
            for name, value in expected.items():
                distance = _distance(got[name], value)
                if not distance <= difference:
                    worst, difference = name, distance
    except RuntimeError as error:
        return Finding(layer.name, precision, worst, None, tolerance, str(error).splitlines()[0])
    return Finding(layer.name, precision, worst, difference, tolerance)


def _values(
    module: nn.Module, inputs: Tensor, layer: Layer, device: torch.device, precision: str
) -> dict[str, Tensor]:
    """Output and gradients of one pass, on the CPU in fp32."""
    module.zero_grad(set_to_none=True)
    here = inputs.clone().to(device).requires_grad_()
    with autocast(device, precision):
        outputs = module(here)
        loss = layer.loss(outputs.float())
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {f"the gradient of {name}": p.grad for name, p in module.named_parameters()}
    found = {"output": outputs, "the gradient of the input": here.grad, **gradients}
    return {name: value.detach().float().cpu() for name, value in found.items() if value is not None}


def _distance(value: Tensor, expected: Tensor) -> float:
    """Infinite where a value isn't finite."""
    if not value.isfinite().all():
        return float("inf")
    # A bias before BatchNorm has a gradient of rounding errors alone: such small values aren't compared.
    floor = 1e-4 * expected.numel() ** 0.5
    return float((value - expected).norm() / max(float(expected.norm()), floor))
