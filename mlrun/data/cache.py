"""A host's cache on its disk: files that came from elsewhere, for all its workers and for later runs.

Below ``~/.cache/mlrun/data`` is a folder per source. A file in it holds a digest and the content it is of,
and is read only where both fit. Once the cache is full, files of other sources go, those used longest ago
first; of the source in use none goes: each of its files is as likely to be read next as any other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlrun.data.folder import Folder
from mlrun.data.listing import Entry
from mlrun.data.traffic import Traffic

_DIGEST = 16
CLAIM_S = 120.0
"""How long to wait for another process of this host that is getting a file; then it is got twice."""
_LOOK_S = 0.01
_ABANDONED_S = 3600.0
_LOOKS = 64
"""How much of the limit may be written before the folder is measured again: other processes write too."""


def default_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlrun" / "data"


class CachedFolder(Folder):
    """``origin`` through the cache. ``identity`` names the source, whichever way it is reached.

    ``limit_bytes`` bounds what all sources of the host keep together; with many processes that write at
    once it may be a few hundredths more.
    """

    def __init__(
        self, origin: Folder, identity: str, limit_bytes: int, traffic: Traffic, root: Path | None = None
    ) -> None:
        self._origin = origin
        self._limit = limit_bytes
        self._traffic = traffic
        self._root = root or default_root()
        self._folder = self._root / _hash(identity)
        self.place, self.listing = origin.place, origin.listing
        self._paths = {entry.name: self._folder / _key(entry) for entry in self.listing.entries}
        self._used = 0
        self._written = 0
        self._complained = False
        self._begin()

    def read(self, name: str) -> bytes:
        path = self._paths[name]
        content = _kept(path)
        if content is None:
            with self._claim(path):
                content = _kept(path)
                if content is None:
                    content = self._origin.read(name)
                    self._traffic.fetched(len(content))
                    self._keep(path, content)
                    return content
        self._traffic.cached()
        return content

    def where(self, name: str) -> str:
        return self._origin.where(name)

    def size(self) -> int:
        """Bytes of all files whose size is known."""
        return sum(entry.size or 0 for entry in self.listing.entries)

    def fits(self) -> bool:
        """Whether all files have room in the cache."""
        return self.size() <= self._limit

    def fill(self, seed: int, ended: threading.Event) -> None:
        """Get what isn't here yet, until ``ended``. What can't be got is left to who needs it."""
        for index in np.random.default_rng(seed).permutation(len(self.listing.entries)):
            entry = self.listing.entries[index]
            if ended.is_set():
                return
            if self._has_room(entry.size or 1) and not self._paths[entry.name].exists():
                with contextlib.suppress(OSError):
                    self.read(entry.name)

    def _begin(self) -> None:
        """Make room, drop what is no longer a file of the source, and see how much is here."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            expected = set(self._paths.values())
            for path in self._folder.glob("*/*"):
                if path not in expected and not _arriving(path):
                    path.unlink(missing_ok=True)
            self._make_room()

    def _make_room(self) -> None:
        sizes = {folder: _size(folder) for folder in self._root.iterdir() if folder.is_dir()}
        others = sorted((f for f in sizes if f != self._folder), key=lambda f: f.stat().st_mtime)
        wanted = max(sizes.get(self._folder, 0), self.size())
        for folder in others:
            if wanted + sum(size for f, size in sizes.items() if f != self._folder) <= self._limit:
                break
            shutil.rmtree(folder, ignore_errors=True)
            del sizes[folder]
        self._used, self._written = sum(sizes.values()), 0

    def _has_room(self, size: int) -> bool:
        if self._written > self._limit // _LOOKS:
            with contextlib.suppress(OSError):
                self._make_room()
        return self._used + size <= self._limit

    def _keep(self, path: Path, content: bytes) -> None:
        if not self._has_room(_DIGEST + len(content)):
            return
        new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_native_id()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(_digest(content))
                file.write(content)
            new.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            if not self._complained:
                self._complained = True
                print(f"mlrun: nothing can be kept in {self._folder}: {error.strerror}", file=sys.stderr)
        self._used += _DIGEST + len(content)
        self._written += _DIGEST + len(content)

    @contextlib.contextmanager
    def _claim(self, path: Path) -> Iterator[None]:
        """Let other processes of this host wait, which would get the same file; an economy, no promise."""
        deadline = time.monotonic() + CLAIM_S
        try:
            lock = os.open(self._folder / f"{path.name[:2]}.lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError:
            yield
            return
        try:
            while not _locked(lock) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            yield
        finally:
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _kept(path: Path) -> bytes | None:
    """The content of a file of the cache; None where there is none, or a damaged one, which goes."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    content = kept[_DIGEST:]
    if kept[:_DIGEST] == _digest(content):
        return content
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _key(entry: Entry) -> str:
    name = _hash(f"{entry.name}\n{entry.size}\n{entry.version}")
    return f"{name[:2]}/{name}"


def _arriving(path: Path) -> bool:
    """Whether another process is just writing it, and hasn't left it behind long ago."""
    return bool(path.suffix) and time.time() - path.stat().st_mtime < _ABANDONED_S


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*/*"))
