"""Real handwritten digits in plain torch, data-parallel in four lines (numbered), as written for torchrun.

mlrun launch examples/ddp_digits.py -np 2 -- --epochs 5
torchrun --nproc-per-node 2 examples/ddp_digits.py --epochs 5
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 32


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 10),
    )


def main(epochs: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    dist.init_process_group()  # 1
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    sampler = DistributedSampler(data)  # 2
    loader = DataLoader(data, BATCH, sampler=sampler)
    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device))  # 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 4
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (model(images.to(device)).argmax(1).cpu() == torch.tensor(digits.target)).float().mean()
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}, accuracy {right:.4f}, weights {weights:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args().epochs)
