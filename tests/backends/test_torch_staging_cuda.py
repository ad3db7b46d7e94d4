"""CUDA tensors through pinned memory; needs a CUDA GPU."""

from __future__ import annotations

import pytest
import torch

from mlrun.backends.torch.device_check import device_check
from mlrun.backends.torch.staging import choice
from mlrun.backends.torch.staging.cuda import CudaStaging, _Pinned
from mlrun.backends.torch.staging.self_test import self_test

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DEVICE = torch.device("cuda", 0)


def test_overlapped_sync_equals_plain_sync() -> None:
    assert self_test(CudaStaging(DEVICE), DEVICE) is None
    assert isinstance(choice.for_device(DEVICE, "overlap"), CudaStaging)


@pytest.mark.parametrize("broken", ["ready", "order"])
def test_the_self_test_notices_a_missing_fence(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Pinned, broken, lambda self: None)
    assert "overlapped sync gave other values" in (self_test(CudaStaging(DEVICE), DEVICE) or "nothing")


def test_several_and_strided_tensors_come_back_in_their_shapes() -> None:
    tensors = [torch.arange(6.0, device=DEVICE).view(2, 3).t(), torch.ones(2, device=DEVICE)]
    staged = CudaStaging(DEVICE).issue(tensors)
    staged.ready()
    staged.host.mul_(2.0)
    staged.publish()
    staged.order()
    assert tensors[0].tolist() == [[0, 6], [2, 8], [4, 10]]
    assert tensors[1].tolist() == [2, 2]


def test_the_gpu_computes_what_the_cpu_does() -> None:
    assert [str(finding) for finding in device_check(DEVICE) if not finding.agrees] == []
