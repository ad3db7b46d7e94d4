"""Wheels made of what is installed here, so that every host gets the same bits, with or without internet.

A wheel is a zip of an installation's files and its metadata (PyPA's "binary distribution format"); one made
here fits hosts with the same system, processor and Python.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import mlrun
from mlrun import starters
from mlrun.errors import RefusedError

OURS = "mlrun-ring"
# pip writes these about one installation; they say nothing of the next.
_NOT_PACKED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_EPOCH = (1980, 1, 1, 0, 0, 0)


def installed_for(requirements: Iterable[Requirement], *, complete: bool) -> list[Distribution]:
    """What is installed here of ``requirements`` and of all that they require, by name.

    Raises:
        RefusedError: with ``complete``, one of them isn't installed here.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(requirements)
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if complete:
                raise RefusedError(
                    f"{name} isn't installed here, so it can't be sent from here",
                    fix="install it here first, or leave --offline out",
                ) from None
            continue
        for line in found[name].requires or ():
            required = Requirement(line)
            contexts = [{"extra": extra} for extra in ("", *wanted.extras)]
            if required.marker is None or any(map(required.marker.evaluate, contexts)):
                todo.append(required)
    return [found[name] for name in sorted(found)]


def pin(installed: Distribution) -> str:
    """``name==version``; a local version such as 2.13.0+cpu is of one build and counts for none elsewhere."""
    return f"{installed.name}=={Version(installed.version).public}"


def pack_wheel(installed: Distribution, folder: Path) -> Path:
    """Make a wheel of an installation in ``folder``; what lies outside its packages (``bin/``) is left out.

    Raises:
        RefusedError: it has no record of its files.
    """
    about = Parser().parsestr(installed.read_text("WHEEL") or "")
    tags = [tag.split("-") for tag in about.get_all("Tag") or ()]
    if not tags or installed.files is None:
        raise RefusedError(
            f"{installed.name} wasn't installed from a wheel, so none can be made of it",
            fix=f"pip install --force-reinstall {pin(installed)}",
        )
    name = canonicalize_name(installed.name).replace("-", "_")
    fits = "-".join(".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True))
    wheel = folder / f"{name}-{installed.version}-{fits}.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        record = ""
        for path, file in sorted(_files(installed)):
            content = file.read_bytes()
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = file.stat().st_mode << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f'"{path}",sha256={digest},{len(content)}')
            if path.endswith(".dist-info/METADATA"):
                record = path.removesuffix("METADATA") + "RECORD"
        archive.writestr(zipfile.ZipInfo(record, _EPOCH), "\n".join([*rows, f'"{record}",,', ""]))
    return wheel


def _files(installed: Distribution) -> Iterator[tuple[str, Path]]:
    """Path in the wheel -> file."""
    ours = canonicalize_name(installed.name) == OURS
    for path in installed.files or ():
        of_metadata = ".dist-info" in path.parts[0]
        if ".." in path.parts or path.suffix == ".pyc" or (of_metadata and path.name in _NOT_PACKED):
            continue
        if of_metadata or not ours:
            yield path.as_posix(), Path(str(path.locate()))
    if ours:
        yield from _own_files(Path(str(installed.locate_file("mlrun")))).items()


def _own_files(installed: Path) -> dict[str, Path]:
    """Ours are taken from where they are imported: an editable installation's are in two places."""
    package = Path(mlrun.__file__).parent
    found: dict[str, Path] = {}
    for root, prefix in ((installed, "mlrun"), (package, "mlrun"), (starters.folder(), "mlrun/configs")):
        for file in root.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                found[f"{prefix}/{file.relative_to(root).as_posix()}"] = file
    return found
