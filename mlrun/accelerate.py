"""Hugging Face's accelerate, and so its Trainer, over the ring: one model on all ranks.

accelerate knows no distributed training on Metal: without this each Mac silently trains a model of its own.
Call ``join`` once, before the first ``Accelerator``, ``PartialState`` or ``TrainingArguments``.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from accelerate.state import PartialState

from mlrun.backends.torch.device import choose_device
from mlrun.errors import RequestError


def join() -> torch.device:
    """Meet the other ranks, and have accelerate use that group; the answer is the device it will train on.

    accelerate then takes its way for processes without CUDA, which wraps models in plain
    DistributedDataParallel and leaves the device as it is told here.

    Raises:
        RequestError: accelerate is already set up in this process.
    """
    if PartialState._shared_state:
        raise RequestError(
            "accelerate is already set up, without the other ranks",
            fix="call mlrun.accelerate.join() before the first Accelerator or TrainingArguments",
        )
    if not dist.is_initialized():
        dist.init_process_group("mlrun")
    device = choose_device("auto", int(os.environ.get("LOCAL_RANK", "0")))
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    return device
