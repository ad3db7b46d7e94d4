"""A rank that trains Lightning's own small example; prints the SHA-256 of its model after training."""

from __future__ import annotations

import hashlib
import tempfile

import pytorch_lightning as lightning
import torch
from pytorch_lightning.demos.boring_classes import BoringModel

import mlrun.lightning

with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        **mlrun.lightning.trainer_options(),
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(trainer.global_rank)  # ranks start from unlike models
    model = BoringModel()
    trainer.fit(model)
    trainer.validate(model, verbose=False)
parameters = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
print(f"rank={trainer.global_rank} of={trainer.world_size} steps={trainer.global_step} {digest=}")
torch.distributed.destroy_process_group()
