"""Images in a folder per class, decoded and augmented with Pillow."""

from __future__ import annotations

import hashlib
import io
import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from mlrun.data.fingerprint import fingerprint_of
from mlrun.data.folder import BadFileError, Folder
from mlrun.data.sampler import Indices, hold_out
from mlrun.errors import RequestError
from mlrun.spec.training import Data

_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)
"""Of ImageNet's pixels in 0..1, per channel: what published models expect."""


@dataclass(frozen=True)
class ImageFiles:
    """``labels[i]`` numbers the class of the file ``names[i]`` of ``folder`` in ``classes`` (sorted)."""

    folder: Folder
    names: list[str]
    labels: NDArray[np.int64]
    classes: list[str]

    def content_sample(self, files: int = 16) -> str:
        """Hash over every file's class and name, and the bytes of ``files`` of them, evenly spread."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self.names:
            digest.update(f"{'/'.join(name.split('/')[-2:])}\n".encode())
        for name in self.names[:: max(1, len(self.names) // files)]:
            digest.update(self.folder.read(name))
        return digest.hexdigest()


def find_images(folder: Folder, within: str = "", classes: list[str] | None = None) -> ImageFiles:
    """The images of each class: a folder directly below ``within`` (``""``, ``train/`` or ``val/``).

    Raises:
        RequestError: no class folder, a class without images, or a class that isn't in ``classes``.
    """
    found = folder.listing.classes(within)
    place = folder.where(within).rstrip("/")
    if not found:
        raise RequestError(
            f"data.path: {place} has no subfolders", fix="put the images in one subfolder per class"
        )
    unknown = sorted(set(found) - set(classes)) if classes is not None else []
    if unknown:
        raise RequestError(f"data.path: {place}/{unknown[0]} has no training images of that class")
    chosen = classes if classes is not None else sorted(found)
    for name in chosen:
        if classes is None and not found[name]:
            raise RequestError(f"data.path: {place}/{name} has no images", fix="remove the folder or fill it")
    images = [found.get(name, []) for name in chosen]
    labels = np.repeat(np.arange(len(chosen)), [len(each) for each in images]).astype(np.int64)
    return ImageFiles(folder, [name for each in images for name in each], labels, chosen)


@dataclass(frozen=True)
class ImageFolder:
    """A Dataset of (image 3 x side x side, normalised; class). Augmentation draws from ``random``."""

    files: ImageFiles
    side: int
    augment: bool

    def __len__(self) -> int:
        return len(self.files.names)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        return self.read(index, random.Random(random.getrandbits(64)))

    def read(self, index: int, draw: random.Random) -> tuple[NDArray[np.float32], int]:
        """Sample ``index``, augmented by what ``draw`` gives; for threads that share no generator.

        Raises:
            BadFileError: the file isn't a readable image.
            OSError: it can't be had.
        """
        name = self.files.names[index]
        content = self.files.folder.read(name)
        try:
            with Image.open(io.BytesIO(content)) as image:
                if isinstance(image, ImageFile.ImageFile):
                    image.draft("RGB", (2 * self.side, 2 * self.side))
                pixels = self._cropped(image.convert("RGB"), draw)
        except UnidentifiedImageError as error:
            raise BadFileError(f"{self.files.folder.where(name)} isn't an image") from error
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise BadFileError(f"{self.files.folder.where(name)}: {error}") from error
        if self.augment and draw.random() < 0.5:
            pixels = pixels[:, ::-1]
        normalised = (pixels.astype(np.float32) / 255 - _MEAN) / _DEVIATION
        return np.ascontiguousarray(normalised.transpose(2, 0, 1)), int(self.files.labels[index])

    def _cropped(self, image: Image.Image, draw: random.Random) -> NDArray[np.uint8]:
        box = _random_box(*image.size, draw) if self.augment else _central_box(*image.size)
        return np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR, box=box))


@dataclass(frozen=True)
class Images:
    """What a folder gives: ``kept`` of ``training`` are trained on, ``held_out`` of ``validation`` not."""

    training: ImageFolder
    validation: ImageFolder
    kept: Indices
    held_out: Indices
    fingerprint: str


def open_images(folder: Folder, data: Data, seed: int) -> Images:
    """``train`` and ``val`` of ``folder`` where they exist, else all of it, split by ``val_split``.

    Raises:
        RequestError: as ``find_images``, or another number of classes than the spec says.
    """
    side = data.image_size or 224
    has_splits = folder.listing.has_split
    files = find_images(folder, "train/" if has_splits else "")
    if has_splits and "val" in folder.listing.folders:
        validation_files = find_images(folder, "val/", files.classes)
        kept, held_out = np.arange(len(files.names)), np.arange(len(validation_files.names))
    else:
        validation_files = files
        kept, held_out = hold_out(len(files.names), data.val_split, seed)
    if data.classes is not None and data.classes != len(files.classes):
        raise RequestError(
            f"data.classes: {data.classes}, but {folder.place} has {len(files.classes)} classes"
        )
    return Images(
        training=ImageFolder(files, side, augment=data.augment),
        validation=ImageFolder(validation_files, side, augment=False),
        kept=kept,
        held_out=held_out,
        fingerprint=fingerprint_of(
            "imagefolder", len(kept), len(held_out), files.classes, files.content_sample()
        ),
    )


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
