"""A torch model with the custom operation zero_out in it: the model of torch.yaml."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Images of 8 x 8 to 10 classes; what zero_out keeps of the hidden layer is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        self.classes = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images)
        return self.classes(hidden + torch.ops.custom_op.zero_out(hidden))
