"""Lightning over the ring: one model on all ranks.

Lightning refuses data-parallel strategies on Metal. ``Trainer(**mlrun.lightning.trainer_options())`` brings
an accelerator of our own, which may, and Lightning's DDP strategy over backend mlrun.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.strategies import DDPStrategy

from mlrun.backends.torch.device import choose_device
from mlrun.errors import RequestError


def trainer_options(**ddp: Any) -> dict[str, Any]:
    """What ``Trainer`` needs to know of the ranks; ``ddp`` goes to DistributedDataParallel.

    Raises:
        RequestError: the process wasn't started by a launcher that sets torchrun's variables.
    """
    try:
        size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except KeyError as missing:
        raise RequestError(
            f"this process knows no other ranks: {missing.args[0]} isn't set",
            fix="start the script with torchrun",
        ) from None
    return {
        "accelerator": RankDevice(),
        "strategy": RingStrategy(**ddp),
        "devices": local_size,
        "num_nodes": size // local_size,
    }


class RankDevice(Accelerator):  # type: ignore[misc]
    """This rank's device: mps, cuda or cpu, the first that computes."""

    def setup_device(self, device: torch.device) -> None:
        """It needs none."""

    def teardown(self) -> None:
        """Nothing to give back."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        chosen = [choose_device("auto", local_rank) for local_rank in range(devices)]
        # Lightning gives a GPU to init_process_group, which wants its number.
        return [torch.device("mps", 0) if device.type == "mps" else device for device in chosen]

    @staticmethod
    def auto_device_count() -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "mlrun"


class RingStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDP over backend mlrun, on the ranks that the launcher has started."""

    def __init__(self, **ddp: Any) -> None:
        super().__init__(
            cluster_environment=TorchElasticEnvironment(),
            process_group_backend="mlrun",
            timeout=timedelta(minutes=30),
            **ddp,
        )

    def determine_ddp_device_ids(self) -> list[int] | None:
        """Only CUDA numbers devices for DistributedDataParallel."""
        return [self.root_device.index] if self.root_device.type == "cuda" else None
