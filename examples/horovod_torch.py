"""A script written for Horovod, on PyTorch: a small network on handwritten digits.

mlrun launch --horovod examples/horovod_torch.py -np 2 -- --epochs 5
"""

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32, help="per rank")
parser.add_argument("--fp16-allreduce", action="store_true")


def load() -> tuple[TensorDataset, TensorDataset]:
    """1500 digits for training, 297 for validation."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def main() -> None:
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
    )

    train, validation = load()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(train, options.batch_size, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        images, labels = validation[hvd.rank() :: hvd.size()]
        right = (model(images).argmax(dim=1) == labels).float().mean()
        accuracy = float(hvd.allreduce(right, name="accuracy"))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: accuracy {accuracy:.4f} on {hvd.size()} ranks", flush=True)
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(f"rank {hvd.rank()}: sum of parameters {total!r}", flush=True)


if __name__ == "__main__":
    main()
