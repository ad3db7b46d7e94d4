"""The device a rank trains on, its threads and its number format."""

from __future__ import annotations

import contextlib
import os
from typing import Literal

import torch

from mlrun.errors import RequestError


def choose_device(wanted: Literal["auto", "cpu", "mps", "cuda"], local_rank: int) -> torch.device:
    """The wanted device, or for ``auto`` the first of mps, cuda and cpu on which a small sum works.

    Raises:
        RequestError: the wanted device isn't there or doesn't compute.
    """
    for kind in ("mps", "cuda", "cpu") if wanted == "auto" else (wanted,):
        device = _nth(kind, local_rank)
        problem = _problem(device)
        if problem is None:
            if kind == "cuda":
                torch.cuda.set_device(device)
            return device
    raise RequestError(f"device: {wanted} doesn't work here: {problem}", fix="set device: auto, or cpu")


def _nth(kind: str, local_rank: int) -> torch.device:
    if kind != "cuda":
        return torch.device(kind)
    return torch.device(kind, local_rank % max(torch.cuda.device_count(), 1))


def _problem(device: torch.device) -> str | None:
    if device.type == "mps" and not torch.backends.mps.is_available():
        return "this PyTorch sees no Metal GPU"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "this PyTorch sees no CUDA GPU"
    try:
        works = torch.ones(4, device=device).sum().item() == 4
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if works else "a sum of four ones is wrong there"


def set_threads(threads: int | None) -> int:
    """Set and return this rank's CPU threads: ``threads``, or its part of the host's cores."""
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    torch.set_num_threads(threads)
    return threads


def device_name(device: torch.device) -> str:
    """The device as people call it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return "Apple GPU (Metal)" if device.type == "mps" else "CPU"


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """The context in which forward passes run; does nothing for fp32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
