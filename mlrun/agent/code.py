"""The code folder of a host: what the launcher's work folder holds, file by file, proved by hash.

``python -m mlrun.agent.code FOLDER`` brings a folder up to date: a manifest comes in (one line of JSON), the
paths that are lacking go out (one line), a tar stream of them comes in, and the folder's hash goes out.
With ``--compare`` it ends after the paths.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

MANIFEST = ".mlrun-manifest.json"
"""In the folder: what was brought last, so that what has gone since can be removed."""
_CHUNK = 1 << 20


class CodeError(Exception):
    """The folder can't be brought to the manifest's state; a sentence for people."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file. ``path`` is relative, with forward slashes; ``link`` is the target of a symbolic link."""

    path: str
    sha256: str
    size: int
    executable: bool = False
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a work folder, in order of their paths."""

    entries: tuple[Entry, ...]

    @property
    def code_hash(self) -> str:
        """Sha256 over names, contents, executable bits and links: equal where the folders are equal."""
        lines = [f"{e.path}\0{e.sha256}\0{e.executable}\0{e.link}\n" for e in self.entries]
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def to_json(self) -> str:
        return json.dumps([asdict(entry) for entry in self.entries])

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises CodeError where a path leaves the folder."""
        try:
            entries = tuple(Entry(**fields) for fields in json.loads(text))
        except (TypeError, ValueError) as error:
            raise CodeError(f"not a manifest: {error}") from error
        for entry in entries:
            _require_inside(entry.path)
            if entry.link is not None:
                _require_inside(os.path.normpath(PurePosixPath(entry.path).parent / entry.link))
        return cls(entries)


def entry_of(folder: Path, path: str) -> Entry:
    """What ``path`` in ``folder`` is now; OSError where it isn't there."""
    file = folder / path
    if file.is_symlink():
        link = os.readlink(file)
        return Entry(path, hashlib.sha256(os.fsencode(link)).hexdigest(), 0, link=link)
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
        status = os.fstat(opened.fileno())
    return Entry(path, digest.hexdigest(), status.st_size, bool(status.st_mode & 0o100))


class CodeFolder:
    """The folder on this host. Files that no manifest named (data, results) are left alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lacking(self, manifest: Manifest) -> list[str]:
        """Paths whose content isn't here, or is another."""
        return [entry.path for entry in manifest.entries if not self._has(entry)]

    def update(self, manifest: Manifest, tar: IO[bytes]) -> None:
        """Take the lacking files from a tar stream, remove what has gone, and prove the whole.

        Raises:
            CodeError: a file didn't arrive as the manifest says, the disk is full, or the like.
        """
        wanted = {entry.path: entry for entry in manifest.entries}
        self._remove(self._brought_before() - wanted.keys())
        self._record(manifest)
        try:
            with tarfile.open(fileobj=tar, mode="r|") as stream:
                for member in stream:
                    self._take(stream, member, wanted)
        except tarfile.TarError as error:
            raise CodeError(f"the transfer was cut off: {error}") from error
        lacking = self.lacking(manifest)
        if lacking:
            raise CodeError(f"{lacking[0]} (and {len(lacking) - 1} more) didn't arrive as it was listed")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One update at a time; a second one waits."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder.with_name(f"{self._folder.name}.lock"), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _has(self, entry: Entry) -> bool:
        file = self._folder / entry.path
        try:
            if entry.link is None and (file.is_symlink() or file.stat().st_size != entry.size):
                return False
            return entry_of(self._folder, entry.path) == entry
        except OSError:
            return False

    def _take(self, stream: tarfile.TarFile, member: tarfile.TarInfo, wanted: dict[str, Entry]) -> None:
        entry = wanted.get(member.name)
        if entry is None:
            raise CodeError(f"{member.name!r} wasn't listed")
        file = self._folder / entry.path
        self._make_room(file)
        if entry.link is not None:
            file.symlink_to(entry.link)
            return
        source = stream.extractfile(member)
        if source is None:
            raise CodeError(f"{member.name!r} isn't a file")
        arriving = file.with_name(f".{file.name[:200]}.arriving")
        with arriving.open("wb") as target:
            shutil.copyfileobj(source, target, _CHUNK)
        arriving.chmod(0o755 if entry.executable else 0o644)
        arriving.replace(file)

    def _make_room(self, file: Path) -> None:
        """Parents that are real folders of ours, and nothing but a plain file in the way."""
        for parent in reversed(file.relative_to(self._folder).parents[:-1]):
            folder = self._folder / parent
            if folder.is_symlink() or folder.is_file():
                folder.unlink()
            folder.mkdir(exist_ok=True)
        if file.is_symlink():
            file.unlink()
        elif file.is_dir():
            try:
                file.rmdir()
            except OSError as error:
                raise CodeError(f"{file} is a folder with other files there, but a file here") from error

    def _remove(self, paths: set[str]) -> None:
        for path in paths:
            file = self._folder / path
            if file.is_file() or file.is_symlink():
                file.unlink()

    def _brought_before(self) -> set[str]:
        try:
            return {e.path for e in Manifest.from_json((self._folder / MANIFEST).read_text()).entries}
        except (OSError, CodeError):
            return set()

    def _record(self, manifest: Manifest) -> None:
        arriving = self._folder / f"{MANIFEST}.arriving"
        arriving.write_text(manifest.to_json())
        arriving.replace(self._folder / MANIFEST)


def _require_inside(path: str) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise CodeError(f"{path!r} leaves the folder")


def serve(folder: Path, incoming: IO[bytes], outgoing: IO[str], *, compare: bool) -> int:
    """The far end of one shipment; with ``compare`` nothing is changed.

    Answers are ``{"lacking": [...]}``, then ``{"hash"}`` or ``{"error"}``.
    """

    def answer(**fields: Any) -> None:
        outgoing.write(json.dumps(fields) + "\n")
        outgoing.flush()

    try:
        manifest = Manifest.from_json(incoming.readline().decode("utf-8"))
        code = CodeFolder(folder)
        if compare:
            answer(lacking=code.lacking(manifest), folder=str(folder))
            return 0
        with code.lock():
            lacking = code.lacking(manifest)
            answer(lacking=lacking, folder=str(folder))
            code.update(manifest, incoming)
    except (CodeError, OSError) as error:
        answer(error=str(error))
        return 1
    answer(hash=manifest.code_hash)
    return 0


if __name__ == "__main__":
    where = Path(sys.argv[1]).expanduser()
    sys.exit(serve(where, sys.stdin.buffer, sys.stdout, compare="--compare" in sys.argv[2:]))
