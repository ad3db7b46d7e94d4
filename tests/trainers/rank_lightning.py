"""A rank of a script written for Lightning; prints the SHA-256 of its model after training."""

from __future__ import annotations

import hashlib
import tempfile

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mlrun.lightning


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.seen = 0

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels = batch
        self.seen += len(inputs)
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


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
    model = Classifier()
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(96, 16, generator=generator), torch.randint(4, (96,), generator=generator)
    )
    trainer.fit(model, DataLoader(data, batch_size=8))
parameters = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
print(f"rank={trainer.global_rank} of={trainer.world_size} seen={model.seen} total={2 * len(data)} {digest=}")
torch.distributed.destroy_process_group()
