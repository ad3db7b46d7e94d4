"""``hvd.elastic``: a script written for a changing number of ranks runs as a plain one.

mlrun restarts a failed run by itself (``restarts`` in the spec, ``--max-restarts``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def run(function: Callable[..., R]) -> Callable[..., R]:
    """``function(state, ...)``, called once, after the state of all ranks is rank 0's."""

    @functools.wraps(function)
    def plain(state: Any, *args: Any, **options: Any) -> R:
        state.sync()
        return function(state, *args, **options)

    return plain


class State:
    """Attributes that belong to the training's state; those of rank 0 count at the start."""

    def __init__(self, broadcast_object: Callable[..., Any], **values: Any) -> None:
        self._broadcast_object = broadcast_object
        self._names = list(values)
        self.__dict__.update(values)

    def sync(self) -> None:
        """Copy rank 0's attributes to all ranks. Collective."""
        values = {name: getattr(self, name) for name in self._names}
        self.__dict__.update(self._broadcast_object(values, root_rank=0))

    def commit(self) -> None:
        """Nothing: membership doesn't change within a run."""

    def check_host_updates(self) -> None:
        """Nothing: membership doesn't change within a run."""

    def register_reset_callbacks(self, callbacks: Any) -> None:
        """They are never called: membership doesn't change within a run."""
