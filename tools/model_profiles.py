"""Write the layer sizes and FLOPs that simulated workers use: ``tools/model_profiles.py``.

Runs the real models once, on PyTorch's meta device, which computes shapes alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlrun.backends.torch.models import Sizes, make_model
from mlrun.spec import JobSpec

TARGET = Path(__file__).parents[1] / "mlrun" / "backends" / "sim" / "profiles.json"
IMAGE = torch.zeros(1, 3, 224, 224, device="meta")
TOKENS = torch.zeros(1, 128, dtype=torch.int64, device="meta")
MODELS = {
    "resnet18": ("images", IMAGE, 1000),
    "resnet50": ("images", IMAGE, 1000),
    "distilbert": ("sequences", TOKENS, 2),
}


def build(name: str, classes: int) -> nn.Module:
    task = "text-classification" if name == "distilbert" else "image-classification"
    spec = JobSpec(name=name, model={"name": name}, task=task, batch_size=1, steps=1)
    shape = (128,) if name == "distilbert" else (3, 224, 224)
    with torch.device("meta"):
        return make_model(spec, Sizes(shape, classes)).eval()


def layers(model: nn.Module, sample: torch.Tensor) -> list[list[Any]]:
    """Per layer with parameters, in forward order: forward FLOPs of one sample, and its parameters' sizes."""
    found: dict[str, list[Any]] = {}
    counter = FlopCounterMode(display=False)

    def note(name: str, module: nn.Module) -> None:
        before = 0

        def enter(*_: object) -> None:
            nonlocal before
            before = counter.get_total_flops()

        def leave(*_: object) -> None:
            sizes = [p.numel() for p in module.parameters(recurse=False)]
            found[name] = [counter.get_total_flops() - before, sizes]

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            note(name, module)
    inputs = {"input_ids": sample} if sample.dtype == torch.int64 else {"": sample}
    with counter:
        model(**inputs) if "" not in inputs else model(sample)
    return list(found.values())


def main() -> None:
    lines = []
    for name, (unit, sample, classes) in MODELS.items():
        rows = layers(build(name, classes), sample)
        body = ",\n      ".join(json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f'  "{name}": {{\n    "unit": "{unit}",\n    "layers": [\n      {body}\n    ]\n  }}')
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
