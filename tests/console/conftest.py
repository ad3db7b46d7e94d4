"""The event streams that the views are shown."""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlrun.protocol import Event


@pytest.fixture(scope="session")
def training() -> Callable[..., Iterator[Event]]:
    """``training(ranks, seconds, fails_at=None)``: the events of one run."""
    return runpy.run_path(str(Path(__file__).with_name("replay.py")))["training"]
