"""Combinations of torch, macOS and chip that are known to train wrongly on MPS without an error.

Leads, not verdicts: what this machine computes is what ``device_check`` finds.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]
_ISSUES = "https://github.com/pytorch/pytorch/issues/"


@dataclass(frozen=True)
class KnownBad:
    """``torch`` and ``macos`` are (first with it, first without it), None is open; no ``chips``: any."""

    symptom: str
    advice: str
    source: str
    torch: tuple[Version | None, Version | None] = (None, None)
    macos: tuple[Version | None, Version | None] = (None, None)
    chips: tuple[str, ...] = ()

    def applies(self, torch: str, macos: str, chip: str | None) -> bool:
        """An unknown chip counts as one of them."""
        return (
            _within(_parsed(torch), self.torch)
            and _within(_parsed(macos), self.macos)
            and (not self.chips or chip is None or chip.startswith(self.chips))
        )

    @property
    def everywhere(self) -> bool:
        """Whether it is known of all combinations, and so says nothing about this one."""
        return self.torch == self.macos == (None, None) and not self.chips

    def __str__(self) -> str:
        return f"{self.symptom}: {self.advice} ({self.source})"


KNOWN_BAD = (
    KnownBad(
        "matrix products over 32 767 rows or more have wrong gradients after a step of another batch size",
        "keep batch x sequence below 32 767 rows",
        f"{_ISSUES}177116",
        chips=("Apple M1", "Apple M2"),
    ),
    KnownBad(
        "gradients of matrix products with expanded tensors are zero, as under y.sum()",
        "update macOS, or set PYTORCH_MPS_PREFER_METAL=1",
        f"{_ISSUES}180201",
        macos=((26, 2), (26, 4)),
    ),
    KnownBad(
        "fp16 or bf16 parameters with a gradient scaler get zero gradients",
        "keep parameters in fp32 (precision: fp16 does), or update torch",
        f"{_ISSUES}184286",
        torch=(None, (2, 13)),
    ),
    KnownBad(
        "attention ignores its dropout",
        "set the model's attention dropout to 0, or update torch",
        f"{_ISSUES}184126",
        torch=(None, (2, 13)),
    ),
    KnownBad(
        "causal attention in fp16 and bf16 sees later positions",
        "train attention models in fp32",
        f"{_ISSUES}195910",
        torch=((2, 13), None),
    ),
    KnownBad(
        "BatchNorm2d has wrong gradients in channels_last",
        "keep the contiguous format, as mlrun's own models do",
        f"{_ISSUES}175189",
    ),
    KnownBad(
        'tensor.to("mps", non_blocking=True) may copy memory that has been given back',
        "copy without non_blocking",
        f"{_ISSUES}189690",
    ),
    KnownBad(
        "an LSTM of several layers leaves its dropout out of the backward pass",
        "set the LSTM's dropout to 0",
        f"{_ISSUES}190056",
    ),
)


def known_bad(torch: str, macos: str, chip: str | None) -> list[KnownBad]:
    """What is known of this combination, as ``platform.mac_ver`` and the chip's brand string name it."""
    return [each for each in KNOWN_BAD if each.applies(torch, macos, chip)]


def _within(version: Version, span: tuple[Version | None, Version | None]) -> bool:
    first, without = span
    return (first is None or version >= first) and (without is None or version < without)


def _parsed(version: str) -> Version:
    numbers = version.partition("+")[0].split(".")[:3]
    return tuple(int("".join(c for c in number if c.isdigit()) or 0) for number in numbers)
