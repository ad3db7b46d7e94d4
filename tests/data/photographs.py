"""Small JPEGs cut from the two photographs that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images


def write_photographs(folder: Path, count: int, side: int = 96) -> None:
    """``count`` cuts of ``side`` x ``side`` pixels below ``folder``: a class for each photograph."""
    draw = np.random.default_rng(0)
    photographs = load_sample_images()
    for number in range(count):
        which = number % 2
        pixels = photographs.images[which]
        top, left = (int(draw.integers(0, length - side)) for length in pixels.shape[:2])
        name = Path(photographs.filenames[which]).stem
        path = folder / name / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[top : top + side, left : left + side]).save(path, quality=85)
