"""Handwritten digits that come with scikit-learn: real data that nobody has to download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlrun.errors import RequestError


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """1797 images, (1797, 1, 8, 8), of mean 0 and deviation 1 over all pixels, and their classes, 0 to 9.

    Source: https://archive.ics.uci.edu/dataset/80

    Raises:
        RequestError: scikit-learn isn't installed.
    """
    try:
        from sklearn import datasets  # noqa: PLC0415 - slow to import, and only needed here
    except ImportError as error:
        raise RequestError(
            "data.source: digits needs scikit-learn", fix="pip install 'mlrun-ring[torch]'"
        ) from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = pixels.astype(np.float32).reshape(-1, 1, 8, 8)
    return (images - images.mean()) / images.std(ddof=1), labels.astype(np.int64)
