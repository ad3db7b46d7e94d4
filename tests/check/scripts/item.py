import torch
from torch import nn

if __name__ == "__main__":
    model, total = nn.Linear(4, 1), 0.0
    for step in range(100):
        loss = model(torch.zeros(2, 4)).mean()
        loss.backward()
        total += loss.item()  # finds: item-each-step
        if step % 50 == 0:
            print(loss.item())
    print(loss.item())
    for _ in range(3):
        print(model.weight.sum().item())
