"""Each framework on each engine trains the same."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np
import pytest

from tests.allreduce.test_engines import play
from tests.engines.training import Parameters

NEEDS = {"gloo": "torch", "mpi": "mpi4py", "horovod": "horovod"}


@functools.cache
def trained(framework: str, engine: str) -> Parameters:
    """The parameters after training on two ranks, which are the same on both."""
    first, second = play(engine, 2, f"tests.engines.training:{framework}")
    assert (first[0], second[0]) == ("ok", "ok"), (first, second)
    assert first[1] == second[1]
    parameters: Parameters = first[1]
    return parameters


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("engine", ["gloo", "mpi", "horovod"])
def test_an_engine_trains_as_the_ring_does(framework: str, engine: str) -> None:
    for module in (framework, NEEDS[engine]):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} isn't installed: make engines-test")
    for own, expected in zip(trained(framework, engine), trained(framework, "ring"), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
