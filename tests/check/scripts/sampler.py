import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if __name__ == "__main__":
    dist.init_process_group()
    data = TensorDataset(torch.zeros(8, 4))
    sampler = DistributedSampler(data)  # finds: no-set-epoch
    fixed = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, 4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    fast = torch.compile(model)  # finds: compiled-ddp
    faster = torch.compile(DistributedDataParallel(torch.nn.Linear(4, 1)))  # finds: compiled-ddp
    right = DistributedDataParallel(torch.compile(torch.nn.Linear(4, 1)))
