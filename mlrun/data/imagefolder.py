"""Images in a folder per class, decoded and augmented with Pillow."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from mlrun.errors import RequestError

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
"""Of ImageNet's pixels in 0..1, per channel: what published models expect."""


@dataclass(frozen=True)
class ImageFiles:
    """``labels[i]`` numbers the class of ``paths[i]`` in ``classes`` (sorted)."""

    paths: list[Path]
    labels: NDArray[np.int64]
    classes: list[str]

    def content_sample(self, files: int = 16) -> str:
        """Hash over every file's class and name, and the bytes of ``files`` of them, evenly spread."""
        digest = hashlib.blake2b(digest_size=16)
        for path in self.paths:
            digest.update(f"{path.parent.name}/{path.name}\n".encode())
        for path in self.paths[:: max(1, len(self.paths) // files)]:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def find_images(folder: Path, classes: list[str] | None = None) -> ImageFiles:
    """The images below each class's subfolder of ``folder``, in an order that doesn't depend on the disk.

    Raises:
        RequestError: no class folder, a class without images, or a class that isn't in ``classes``.
    """
    found = sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not found:
        raise RequestError(
            f"data.path: {folder} has no subfolders", fix="put the images in one subfolder per class"
        )
    unknown = sorted(set(found) - set(classes)) if classes is not None else []
    if unknown:
        raise RequestError(f"data.path: {folder / unknown[0]} has no training images of that class")
    names = classes if classes is not None else found
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in _SUFFIXES)
        if not images and classes is None:
            raise RequestError(
                f"data.path: {folder / name} has no images", fix="remove the folder or fill it"
            )
        paths += images
        labels += [label] * len(images)
    return ImageFiles(paths, np.array(labels, dtype=np.int64), names)


@dataclass(frozen=True)
class ImageFolder:
    """A Dataset of (image 3 x side x side, normalised; class). Augmentation draws from ``random``."""

    files: ImageFiles
    side: int
    augment: bool

    def __len__(self) -> int:
        return len(self.files.paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        return self.read(index, random.Random(random.getrandbits(64)))

    def read(self, index: int, draw: random.Random) -> tuple[NDArray[np.float32], int]:
        """Sample ``index``, augmented by what ``draw`` gives; for threads that share no generator.

        Raises:
            OSError: the file isn't a readable image; the message names it.
        """
        path = self.files.paths[index]
        try:
            with Image.open(path) as image:
                if isinstance(image, ImageFile.ImageFile):
                    image.draft("RGB", (2 * self.side, 2 * self.side))
                pixels = self._cropped(image.convert("RGB"), draw)
        except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
            raise OSError(f"{path}: {error}") from error
        if self.augment and draw.random() < 0.5:
            pixels = pixels[:, ::-1]
        normalised = (pixels.astype(np.float32) / 255 - _MEAN) / _DEVIATION
        return np.ascontiguousarray(normalised.transpose(2, 0, 1)), int(self.files.labels[index])

    def _cropped(self, image: Image.Image, draw: random.Random) -> NDArray[np.uint8]:
        box = _random_box(*image.size, draw) if self.augment else _central_box(*image.size)
        return np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR, box=box))


def _random_box(width: int, height: int, draw: random.Random) -> tuple[float, float, float, float]:
    """A crop of 8 to 100 % of the area with sides in 3:4 to 4:3.

    Source: https://arxiv.org/abs/1409.4842, section 6
    """
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            left, top = draw.uniform(0, width - w), draw.uniform(0, height - h)
            return left, top, left + w, top + h
    return _central_box(width, height)


def _central_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The middle square, 7/8 of the shorter side: 224 of 256."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
