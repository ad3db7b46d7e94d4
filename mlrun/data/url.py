"""Data behind a URL that fsspec opens: a bucket, a web server, another machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from mlrun.data.folder import DataError, Folder
from mlrun.data.listing import Entry, Listing, listing_of

_EXTRAS = {"s3": "pip install 'mlrun-ring[s3]'", "s3a": "pip install 'mlrun-ring[s3]'"}
_CREDENTIALS = "give the credentials as env: {AWS_ACCESS_KEY_ID: null, ...}, or let the host's own read it"
_VERSIONS = ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime")
"""What file systems call that which changes with the content."""


class UrlFolder(Folder):
    """The files of ``source`` below ``url``, or below ``path`` in it; one file where that is a file.

    Raises:
        DataError: the URL can't be opened or listed, or nothing of ``source`` is there; in a sentence.
    """

    def __init__(self, url: str, path: str | None, source: str) -> None:
        self.place = url.rstrip("/") + (f"/{path.strip('/')}" if path else "")
        with self._explained(self.place):
            self._files, self._root = fsspec.core.url_to_fs(self.place)
            self._root = self._root.rstrip("/")
            found = self._files.find(self._root, detail=True)
        if list(found) == [self._root]:
            self.place, _, name = self.place.rpartition("/")
            self._root = self._root.rpartition("/")[0]
            self.listing = Listing([_entry(name, *found.values())])
        else:
            below = ((path[len(self._root) + 1 :], told) for path, told in found.items())
            self.listing = listing_of((_entry(name, told) for name, told in below), source)
        self._sizes = {entry.name: entry.size for entry in self.listing.entries}
        if not self.listing.entries:
            raise DataError(f"{self.place} has no files of {source}", "correct data.location or data.path")

    def read(self, name: str) -> bytes:
        with self._explained(self.where(name)):
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        size = self._sizes[name]
        if size is not None and len(content) != size:
            raise DataError(
                f"{self.where(name)} is truncated: {len(content):,} of {size:,} bytes came",
                "upload it again, then: mlrun resume",
            )
        return content

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError:
            raise DataError(f"{what} isn't there", "correct data.location or data.path") from None
        except ImportError as error:
            scheme = what.partition(":")[0]
            fix = _EXTRAS.get(scheme, "install what it names on every host")
            raise DataError(f"{what} can't be opened: {error}", fix) from None
        except Exception as error:  # Every file system has errors of its own.
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            if isinstance(error, PermissionError) or "Credentials" in words:
                raise DataError(f"{what} may not be read: {error}", _CREDENTIALS) from None
            raise DataError(f"{what} can't be read: {words}", "try it again later: mlrun resume") from None


def _entry(name: str, told: dict[str, Any]) -> Entry:
    version = next((str(told[key]) for key in _VERSIONS if told.get(key) is not None), "")
    return Entry(name, told.get("size"), version)
