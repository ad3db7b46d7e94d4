"""Which staging a device gets: overlap where it is there and proves itself, copies elsewhere."""

from __future__ import annotations

import functools
import warnings
from typing import Literal, TypeAlias

import torch

from mlrun.backends.torch.staging.base import CopyStaging, HostStaging, Staging
from mlrun.backends.torch.staging.cuda import CudaStaging
from mlrun.backends.torch.staging.mps import MpsStaging
from mlrun.backends.torch.staging.self_test import self_test
from mlrun.errors import RequestError

Mode: TypeAlias = Literal["auto", "overlap", "copy"]

MPS_SINCE = (2, 13)
"""torch with host aliases of unified memory, and events that are waited for without Python's lock."""


@functools.cache
def for_device(device: torch.device, mode: Mode = "auto") -> Staging:
    """The staging for tensors of ``device``, chosen once per process; a GPU's takes about two seconds.

    Raises:
        RequestError: ``mode`` is overlap, and it doesn't work here.
    """
    if device.type == "cpu":
        return HostStaging()
    if mode == "copy":
        return CopyStaging()
    staging, problem = overlapping(device)
    if staging is not None:
        return staging
    if mode == "overlap":
        raise RequestError(
            f"allreduce.staging: overlap doesn't work on {device}: {problem}",
            fix="set allreduce.staging: auto",
        )
    warnings.warn(f"gradients on {device} are copied to the ring, without overlap: {problem}", stacklevel=2)
    return CopyStaging()


def overlapping(device: torch.device) -> tuple[Staging | None, str | None]:
    """The staging that overlaps on ``device`` and None, or None and why there is none."""
    try:
        problem = missing(device)
        if problem is not None:
            return None, problem
        staging: Staging = CudaStaging(device) if device.type == "cuda" else MpsStaging()
        problem = self_test(staging, device)
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
    return (None, problem) if problem is not None else (staging, None)


def missing(device: torch.device) -> str | None:
    """What overlap needs and isn't there; None: nothing."""
    if device.type == "cuda":
        return None
    if device.type != "mps":
        return f"mlrun knows no device of type {device.type}"
    if _version() < MPS_SINCE:
        return f"it needs torch {'.'.join(map(str, MPS_SINCE))}, and this is {torch.__version__}"
    if not hasattr(torch.mps, "_host_alias_storage") or not hasattr(torch.mps, "Event"):
        return f"this torch ({torch.__version__}) has no host alias of a tensor's memory"
    return _alias_problem(device)


def _alias_problem(device: torch.device) -> str | None:
    tensor = torch.full((4,), 7.0, device=device)
    torch.mps.synchronize()  # nothing else encodes yet
    seen = torch.empty(0).set_(torch.mps._host_alias_storage(tensor.untyped_storage()))
    return None if seen[:4].tolist() == [7.0] * 4 else "a tensor's host alias doesn't show its content"


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
