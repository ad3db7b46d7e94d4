"""A rank of a script written for accelerate; prints the SHA-256 of its model after training."""

from __future__ import annotations

import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mlrun.accelerate

mlrun.accelerate.join()
accelerator = Accelerator()

torch.manual_seed(accelerator.process_index)  # ranks start from unlike models
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(96, 16, generator=generator), torch.randint(4, (96,), generator=generator))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))

steps = 0
for _ in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        steps += 1

parameters = torch.cat([p.detach().flatten().cpu() for p in accelerator.unwrap_model(model).parameters()])
digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
print(f"rank={accelerator.process_index} of={accelerator.num_processes} {steps=} {digest=}")
accelerator.end_training()
