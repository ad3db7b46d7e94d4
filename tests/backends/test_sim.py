"""The sizes that simulated workers use are those of the real models."""

from __future__ import annotations

import pytest
import torch

from mlrun.backends.sim.profiles import profile
from mlrun.backends.torch.models import Sizes, make_model
from mlrun.errors import RequestError
from mlrun.spec import JobSpec


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("resnet50", (3, 224, 224), 1000), ("resnet18", (3, 224, 224), 1000), ("distilbert", (128,), 2)],
)
def test_layers_are_those_of_the_real_model(name: str, shape: tuple[int, ...], classes: int) -> None:
    task = "text-classification" if name == "distilbert" else "image-classification"
    spec = JobSpec.model_validate(
        {"name": "real", "model": {"name": name}, "task": task, "batch_size": 1, "steps": 1}
    )
    with torch.device("meta"):
        real = make_model(spec, Sizes(shape, classes))
    sizes = sorted(parameter.numel() for parameter in real.parameters())
    assert sorted(size for layer in profile(name).layers for size in layer.sizes) == sizes


def test_buckets_hold_every_gradient_in_the_order_of_the_backward_pass() -> None:
    resnet = profile("resnet50")
    for cap_mb in (1.0, 4.0, 25.0):
        buckets = resnet.buckets(cap_mb)
        assert sum(bucket.elements for bucket in buckets) == resnet.parameters
        assert all(bucket.elements * 4 >= cap_mb * 2**20 for bucket in buckets[:-1])
        ready = [bucket.ready for bucket in buckets]
        assert ready == sorted(ready)
        assert ready[-1] == 1.0
    assert resnet.buckets(4.0)[0].ready < 0.01  # the last layer's, which the backward pass begins with


def test_a_model_without_known_layers_is_refused() -> None:
    with pytest.raises(RequestError, match=r"no layer sizes of 'resnet99'.*(?s:.)*resnet50"):
        profile("resnet99")
