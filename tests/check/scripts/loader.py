import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(8, 4))
loader = DataLoader(data, 4, num_workers=2, pin_memory=True)  # finds: pin-memory, no-main-guard
plain = DataLoader(data, 4, num_workers=0)
for (batch,) in loader:
    x = batch.to("mps", non_blocking=True)  # finds: non-blocking
    y = x.to(memory_format=torch.channels_last)  # finds: channels-last
