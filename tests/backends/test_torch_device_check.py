"""What is said of a GPU before it may train: layers compared, overlap proved, known trouble."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch import nn

from mlrun.backends import registry
from mlrun.backends.torch import device_check as checks
from mlrun.backends.torch.device_check import Layer, device_check, require_agreement
from mlrun.backends.torch.fallbacks import Fallbacks
from mlrun.backends.torch.known_bad import KNOWN_BAD, known_bad
from mlrun.backends.torch.staging import choice
from mlrun.backends.torch.staging.base import CopyStaging, HostStaging, Staged
from mlrun.backends.torch.staging.self_test import self_test
from mlrun.errors import RefusedError, RequestError

CPU = torch.device("cpu")


def test_the_cpu_agrees_with_itself() -> None:
    findings = device_check(CPU, {"fp32", "bf16"})
    assert [str(each) for each in findings if not each.agrees] == []
    assert {each.layer for each in findings} == {layer.name for layer in checks.LAYERS}


class _WrongOnItsOwn(nn.Module):
    """A layer whose copy, which stands for the device's, computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = 1.0

    def __deepcopy__(self, memo: object) -> _WrongOnItsOwn:
        copied = _WrongOnItsOwn()
        copied.load_state_dict(self.state_dict())
        copied.factor = 1.02
        return copied

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(inputs) * self.factor
        return outputs


def test_a_wrong_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LAYERS", (Layer("crooked", _WrongOnItsOwn, (4,)),))
    with pytest.raises(RefusedError, match=r"crooked \(fp32\): .* differs by [1-9]"):
        require_agreement(CPU, "fp32")


def test_plain_staging_passes_the_self_test_and_a_lost_result_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert self_test(CopyStaging(), CPU) is None

    class Forgetful(HostStaging):
        def issue(self, tensors, *, read=True):  # type: ignore[no-untyped-def]
            return Staged(tensors, tensors[0].clone())

    assert "other values than plain sync" in (self_test(Forgetful(), CPU) or "")


def test_a_device_without_overlap_is_copied_and_that_is_said_once() -> None:
    device = torch.device("meta")
    with pytest.warns(UserWarning, match="copied to the ring, without overlap"):
        assert isinstance(choice.for_device(device), CopyStaging)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(choice.for_device(device), CopyStaging)
    with pytest.raises(RequestError, match="overlap doesn't work on meta"):
        choice.for_device(device, "overlap")


def test_older_torch_on_a_mac_has_no_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    assert "needs torch 2.13" in (choice.missing(torch.device("mps")) or "")


def test_known_trouble_is_told_by_version_and_chip() -> None:
    def symptoms(*combination: str) -> str:
        return " ".join(each.symptom for each in known_bad(*combination) if not each.everywhere)

    assert "expanded" in symptoms("2.13.0", "26.3", "Apple M4")
    assert "expanded" not in symptoms("2.13.0", "26.4.1", "Apple M4")
    assert "32 767" in symptoms("2.13.0", "15.5", "Apple M1 Max")
    assert "32 767" not in symptoms("2.13.0", "15.5", "Apple M3 Ultra")
    assert "gradient scaler" in symptoms("2.12.1+cpu", "15.5", "Apple M3")
    assert "gradient scaler" not in symptoms("2.13.0a0+git", "15.5", "Apple M3")
    assert all(each.source.startswith("https://") and each.advice for each in KNOWN_BAD)


def test_operators_that_fell_back_to_the_cpu_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    text = (
        "The operator 'aten::{}' is not currently supported on the MPS backend and will fall back to run on"
    )
    fallbacks = Fallbacks()
    with warnings.catch_warnings():
        fallbacks.watch()
        for name in ("b", "a", "b"):
            warnings.warn(text.format(name), stacklevel=1)
    torch.set_warn_always(False)
    assert fallbacks.report() == "ran on the CPU, since MPS lacks them: aten::a, aten::b"


@pytest.mark.parametrize("users", [None, "1.4"])
def test_too_large_a_job_fails_instead_of_swapping_unless_the_user_says_otherwise(
    users: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    high, low = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
    for name in (high, low):
        monkeypatch.setenv(name, "")  # put back to what it was after the test
        monkeypatch.delenv(name)
    if users is not None:
        monkeypatch.setenv(high, users)
    registry.create("torch")
    found = os.environ.get(high), os.environ.get(low)
    assert found == (("1.0", "0.9") if users is None else (users, None))
