import torch
from torch import nn

if __name__ == "__main__":
    model = nn.Linear(4, 1).cuda()  # finds: cuda
    other = nn.Linear(4, 1).to("cuda:0")  # finds: cuda
    device = torch.device("cuda")  # finds: cuda
    x = torch.zeros(3, device="cuda")  # finds: cuda
    good = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # finds: no-mps
    if torch.cuda.is_available():
        model = model.cuda()
    y = x.to(good)
