"""The Communicator of this process, for code that is started and not handed one: people's own scripts."""

from __future__ import annotations

from mlrun.allreduce.communicator import Communicator
from mlrun.errors import RequestError

_own: Communicator | None = None


def lend(communicator: Communicator | None) -> None:
    """From now on ``own`` gives it; None takes it back. The lender closes it."""
    global _own  # noqa: PLW0603 - a process is one rank of one run
    _own = communicator


def lent() -> Communicator | None:
    """What ``own`` gives; None where it would raise."""
    return _own


def own() -> Communicator:
    """The group of all ranks of the run that this process belongs to.

    Raises:
        RequestError: it isn't a worker of a run.
    """
    if _own is None:
        raise RequestError(
            "this process isn't a worker of a run, so there are no other ranks to average with",
            fix="start the script with mlrun launch",
        )
    return _own
