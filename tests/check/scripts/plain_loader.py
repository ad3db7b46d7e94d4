import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dist.init_process_group()
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    device = "cuda" if cuda else "mps" if mps else "cpu"
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    loader = DataLoader(TensorDataset(torch.zeros(8, 4)), 4)  # finds: no-sampler
