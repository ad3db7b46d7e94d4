"""Choose the engine of a plan; only the chosen one is imported."""

from __future__ import annotations

import importlib

from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.links import Listener
from mlrun.errors import RequestError
from mlrun.protocol import Plan

_MODULES = {
    "ring": "mlrun.allreduce.ring",
    "gloo": "mlrun.allreduce.gloo",
    "mpi": "mlrun.allreduce.mpi",
    "horovod": "mlrun.allreduce.horovod",
}


def connect(plan: Plan, rank: int, listener: Listener, secret: str) -> Communicator:
    """Join the group of ``plan`` as ``rank``; every rank calls it.

    Raises:
        RequestError: an unknown engine, one that isn't installed, or one that can't do what the plan says.
        CommunicatorError: the group couldn't be made; the message names who is missing.
    """
    if plan.engine not in _MODULES:
        raise RequestError(f"there is no engine {plan.engine}", fix=f"choose one of {', '.join(_MODULES)}")
    communicator: Communicator = importlib.import_module(_MODULES[plan.engine]).from_plan(
        plan, rank, listener, secret
    )
    return communicator
