import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dist.init_process_group()
    model = DDP(torch.nn.Linear(4, 1))
    data = TensorDataset(torch.zeros(8, 4))
    loader = DataLoader(data, 4, shuffle=True)  # finds: no-sampler
    validation = DataLoader(data, 4)
