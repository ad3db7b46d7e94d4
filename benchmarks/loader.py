"""How quickly a rank gets its images, against torch's own DataLoader over the same files and work.

Both decode, crop and normalise the same JPEGs in as many loader processes; they take turns in one run,
because the machine's own speed drifts. Ten more epochs tell whether memory stays bounded. From the top of
the checkout: ``python -m benchmarks.loader``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Subset

from mlrun.backends.torch.data.sources import Source, make_source
from mlrun.data.feed import Feed
from mlrun.data.folder import LocalFolder
from mlrun.data.imagefolder import open_images
from mlrun.data.sampler import Sampler
from mlrun.spec import JobSpec
from tests.data.photographs import write_photographs

SIDE, BATCH = 128, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder), options.images, side=256)
        spec = _spec(folder, options.workers)
        source = make_source(spec, torch.device("cpu"))
        steps = options.images // BATCH
        ours, theirs = _ours(source, options.images), _theirs(spec, folder)
        for stream in (ours, theirs):
            _speed(stream, steps)
        pairs = []
        for turn in range(options.turns):
            order = (ours, theirs) if turn % 2 else (theirs, ours)
            speeds = {id(stream): _speed(stream, steps) for stream in order}
            pairs.append((speeds[id(ours)], speeds[id(theirs)]))
            print(f"mlrun {pairs[-1][0]:.0f}, DataLoader {pairs[-1][1]:.0f} images/s", flush=True)
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"mlrun / DataLoader: {ratio:.3f}, median of {len(pairs)} pairs, {options.workers} workers")
        for epoch in range(1, 11):
            _speed(ours, steps)
            print(
                f"epoch {epoch}: {_memory() / 1e6:.0f} MB in this process and all loader processes",
                flush=True,
            )
        source.close()


def _spec(folder: str, workers: int) -> JobSpec:
    data = {"source": "imagefolder", "path": folder, "image_size": SIDE, "workers": workers}
    return JobSpec.model_validate(
        {"name": "loader", "model": {"name": "mlp"}, "data": data, "batch_size": BATCH, "steps": 1}
    )


def _ours(source: Source, images: int) -> Iterator[int]:
    sampler = Sampler(images, (BATCH,), seed=0)
    feed = Feed(
        source.train, sampler, rank=0, accumulation=1, place=lambda batch: batch.to(torch.device("cpu"))
    )
    for step in itertools.count():
        yield sum(batch.count for batch in feed.take(step))


def _theirs(spec: JobSpec, folder: str) -> Iterator[int]:
    """As people write it: a shuffled DataLoader over the same Dataset, with workers that persist."""
    images = open_images(LocalFolder(Path(folder), "imagefolder"), spec.data, spec.seed)
    dataset: Any = Subset(images.training, images.kept.tolist())  # type: ignore[arg-type]
    workers = spec.data.workers
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
    )
    while True:
        for _inputs, targets in loader:
            yield len(targets)


def _speed(stream: Iterator[int], steps: int) -> float:
    """Images per second over ``steps`` batches."""
    start = time.perf_counter()
    samples = sum(itertools.islice(stream, steps))
    return samples / (time.perf_counter() - start)


def _memory() -> int:
    here = psutil.Process(os.getpid())
    return sum(process.memory_info().rss for process in (here, *here.children(recursive=True)))


if __name__ == "__main__":
    main()
