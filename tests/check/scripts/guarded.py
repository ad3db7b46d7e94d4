import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    for (batch,) in DataLoader(TensorDataset(torch.zeros(8, 4)), 4, num_workers=2):
        print(batch.mean().item())


if __name__ == "__main__":
    main()
