"""Find what a spec names as ``package.module:callable``."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from mlrun.errors import RequestError


def resolve(reference: str, workdir: str | None, key: str) -> Any:
    """The object behind ``package.module:name``, with ``workdir`` (or the current folder) importable.

    ``key`` is the spec's key, for the message.

    Raises:
        RequestError: no such module or name, or the module fails to import.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise RequestError(f"{key}: {reference!r} isn't of the form package.module:callable")
    folder = str(Path(workdir or ".").expanduser().resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise RequestError(
            f"{key}: there is no module {error.name!r} (looked in {folder} and the environment)",
            fix="put the file there, set workdir, or correct the name",
        ) from error
    except Exception as error:
        raise RequestError(f"{key}: importing {module_name} failed at {_place(error)}: {error!r}") from error
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise RequestError(f"{key}: module {module_name} ({module.__file__}) has no {attribute!r}") from error
    return found


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
