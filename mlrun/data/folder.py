"""Folder: a read-only tree of files, wherever it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from mlrun.data.listing import Listing, list_tree
from mlrun.errors import RunFailedError


class DataError(RunFailedError, OSError):
    """Data that can't be had, in a sentence for people."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix=fix)

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str | None]]:
        return DataError, (self.message, self.fix)


class BadFileError(OSError):
    """A file that was read, and whose content isn't what it should be; the message names it."""


class Folder(ABC):
    """Files by name. It travels to loader processes, which open what they need themselves."""

    place: str
    """What messages call it: a path or a URL."""
    listing: Listing

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file of ``listing``.

        Raises:
            OSError: it can't be read; a DataError where more is known than the system's words.
        """

    def where(self, name: str) -> str:
        """What messages call one file."""
        return f"{self.place}/{name}"


class LocalFolder(Folder):
    """A folder, or a single file, of this machine.

    Raises:
        OSError: it isn't there or can't be read.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._root = path.parent if path.is_file() else path
        self.place = str(self._root)
        self.listing = list_tree(path, source)

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()
