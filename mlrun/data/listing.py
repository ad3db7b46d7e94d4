"""Which files a tree of data has. The standard library alone is imported here: agents ask too."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = {
    "imagefolder": frozenset(
        {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
    ),
    "csv": frozenset({".csv"}),
    "jsonl": frozenset({".jsonl"}),
}
"""Source -> how the names of its files end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file. ``name`` is relative to the tree, with ``/`` between its parts."""

    name: str
    size: int | None
    """Bytes; None where nobody says."""
    version: str
    """Another one when the content changes: the time of the last change, or an ETag."""


@dataclass(frozen=True)
class Listing:
    """The files of a tree, sorted by name, and its folders, those without files included."""

    entries: list[Entry]
    folders: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    @property
    def has_split(self) -> bool:
        """Whether there is a folder ``train``, and with it perhaps one called ``val``."""
        return "train" in self.folders

    def classes(self, within: str = "") -> dict[str, list[str]]:
        """Class -> its files, for each folder directly below ``within`` (``""`` or such as ``train/``)."""
        below = (name[len(within) :] for name in self.folders if name.startswith(within))
        found: dict[str, list[str]] = {name: [] for name in below if name and "/" not in name}
        for entry in self.entries:
            folder, _, rest = entry.name[len(within) :].partition("/")
            if rest and entry.name.startswith(within):
                found[folder].append(entry.name)
        return found

    def hash(self) -> str:
        """Of the sorted names alone."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            digest.update(f"{entry.name}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()


def listing_of(entries: Iterable[Entry], source: str, folders: Iterable[str] = ()) -> Listing:
    """``entries`` as far as they are files of ``source``; hidden ones, such as a Mac leaves, are not."""
    kept = [e for e in entries if not _hidden(e.name) and _is(e.name, source)]
    parents = {str(parent) for e in kept for parent in _parents(e.name)}
    return Listing(
        sorted(kept, key=lambda e: e.name), sorted(parents | {f for f in folders if not _hidden(f)})
    )


def list_tree(root: Path, source: str, *, versions: bool = False) -> Listing:
    """The files of ``source`` below the folder ``root``; one file alone where ``root`` is a file.

    ``versions``: ask for each file's size and version too, which takes its time on a network drive.

    Raises:
        OSError: there is nothing, or it can't be read.
    """
    if root.is_file():
        return Listing([_entry(root, root.name, versions)])
    entries, folders = [], []
    for folder, subfolders, files in os.walk(root, onerror=_raise):
        prefix = os.path.relpath(folder, root).replace(os.sep, "/") + "/"
        prefix = "" if prefix == "./" else prefix
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        folders += [prefix + name for name in subfolders]
        entries += [
            _entry(Path(folder, name), prefix + name, versions) for name in files if _is(name, source)
        ]
    return listing_of(entries, source, folders)


def version_of(status: os.stat_result) -> str:
    """``Entry.version`` of a file on a disk."""
    return str(status.st_mtime_ns)


def _entry(path: Path, name: str, versions: bool) -> Entry:
    status = path.stat() if versions else None
    return Entry(name, status.st_size, version_of(status)) if status is not None else Entry(name, None, "")


def _is(name: str, source: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES[source]


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _parents(name: str) -> Iterable[str]:
    parts = name.split("/")[:-1]
    return ("/".join(parts[: i + 1]) for i in range(len(parts)))


def _raise(error: OSError) -> None:
    raise error
