"""The loop people write by hand: plain PyTorch, or DistributedDataParallel over gloo when torchrun starts it.

Prints images/s of all ranks, as JSON, for the steps after the warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mlrun.backends.torch.models import Sizes, make_model
from mlrun.spec import JobSpec
from mlrun.spec.training import Model

POOL = 256
"""Distinct images; mlrun's synthetic data has as many."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("batch-size", "steps", "warm-up", "image-size", "classes", "threads", "log-every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--model", required=True)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    sizes = Sizes((3, asked.image_size, asked.image_size), asked.classes)
    model_spec = Model(name=asked.model)
    spec = JobSpec(name="bare", model=model_spec, batch_size=asked.batch_size, steps=asked.steps)
    model: nn.Module = make_model(spec, sizes).train()
    if world_size > 1:
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(POOL, *sizes.sample_shape), torch.randint(asked.classes, (POOL,))
    started = 0.0
    for step in range(asked.steps):
        if step == asked.warm_up:
            started = time.monotonic()
        picked = torch.randint(POOL, (asked.batch_size,))
        loss = nn.functional.cross_entropy(model(images[picked]), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % asked.log_every == 0:
            loss.item()
    seconds = time.monotonic() - started
    if int(os.environ.get("RANK", "0")) == 0:
        speed = world_size * asked.batch_size * (asked.steps - asked.warm_up) / seconds
        print(json.dumps({"images_per_second": speed}), flush=True)
    if world_size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
