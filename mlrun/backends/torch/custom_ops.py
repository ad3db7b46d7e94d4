"""How torch's custom operations are compiled and loaded."""

from __future__ import annotations

from pathlib import Path

import torch


def flags() -> list[str]:
    """For the compiler, against the installed torch."""
    from torch.utils import cpp_extension  # noqa: PLC0415 - imports setuptools

    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    library = [f"-L{path}" for path in cpp_extension.library_paths()]
    return ["-std=c++20", *include, *library, "-lc10", "-ltorch", "-ltorch_cpu"]


def load(path: Path) -> None:
    """Its operations are in ``torch.ops`` then."""
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
