"""Rings of n ranks in one process: threads, joined over real loopback links."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mlrun.allreduce import engines
from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.links import Listener
from mlrun.protocol import Plan

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

T = TypeVar("T")
TOGETHER_S = 120.0

if importlib.util.find_spec("mlrun.allreduce._ring") is None:
    collect_ignore = ["test_collectives.py"]


class Ring:
    """n communicators, one per rank."""

    def __init__(self, size: int, settings: dict[str, Any]) -> None:
        listeners = [Listener(["127.0.0.1"]) for _ in range(size)]
        hosts = [f"mac-{rank}" for rank in range(size)]
        plan = Plan(0, "ring", [listener.endpoints for listener in listeners], hosts, settings)
        secret = secrets.token_hex(32)
        self._threads = ThreadPoolExecutor(size)
        joining = [
            self._threads.submit(engines.connect, plan, rank, listeners[rank], secret) for rank in range(size)
        ]
        self.ranks: list[Communicator] = [each.result() for each in joining]
        for listener in listeners:
            listener.close()

    def together(self, play: Callable[[Communicator], T]) -> list[T]:
        """``play`` on every rank at once; the first error that isn't only the echo of another's."""
        playing = [self._threads.submit(play, comm) for comm in self.ranks]
        ended, late = wait(playing, TOGETHER_S, return_when="FIRST_EXCEPTION")
        failed = next((each for each in ended if each.exception() is not None), None)
        if failed is None and not late:
            return [each.result() for each in playing]
        for comm in self.ranks:
            comm.abort("the test has failed")
        wait(playing)
        missing = [playing.index(each) for each in late]
        raise (failed and failed.exception()) or AssertionError(f"ranks {missing} weren't done in time")

    def close(self) -> None:
        list(self._threads.map(lambda comm: comm.close(), self.ranks))
        self._threads.shutdown()


@pytest.fixture
def ring() -> Iterator[Callable[..., Ring]]:
    """``ring(n, **settings)``: a fresh ring, closed after the test."""
    made: list[Ring] = []

    def make(size: int, **settings: Any) -> Ring:
        made.append(Ring(size, settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


class KeptRings:
    """One ring per size, used again and again until it breaks."""

    def __init__(self) -> None:
        self._rings: dict[int, Ring] = {}

    def together(self, size: int, play: Callable[[Communicator], T]) -> list[T]:
        if size not in self._rings:
            self._rings[size] = Ring(size, {})
        try:
            return self._rings[size].together(play)
        except BaseException:
            self._rings.pop(size).close()
            raise

    def close(self) -> None:
        for each in self._rings.values():
            each.close()


@pytest.fixture(scope="module")
def rings() -> Iterator[KeptRings]:
    """Rings for many small examples."""
    kept = KeptRings()
    yield kept
    kept.close()
