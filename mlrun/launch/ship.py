"""The work folder to the hosts: which files, and their way there.

Files are those that git tracks or would track (without git: all), less what ``.mlrunignore`` and the spec's
rules leave out, plus what they ask for with ``!``. Both are in gitignore's language.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pathspec import GitIgnoreSpec

from mlrun.agent.code import MANIFEST, Entry, Manifest, entry_of
from mlrun.errors import RefusedError, RunFailedError
from mlrun.hosts import Host
from mlrun.launch.ssh import SshTransport

CACHE = "~/.local/share/mlrun/code"
"""On a host: one folder per project."""
IGNORE_FILE = ".mlrunignore"
SIZE_LIMIT = 500 * 10**6
"""Bytes of a work folder that are shipped at most."""
ANSWER_TIMEOUT_S = 120.0
"""How long a host may take to compare or to prove what it has."""
TRANSFER_TIMEOUT_S = 1800.0

_GIT_TIMEOUT_S = 60
_BLOCK = 1 << 18
_NEVER_NAMED = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store", MANIFEST})
_NEVER_AT_TOP = frozenset({"runs"})
# What makes a folder an environment: it is bound to its machine and must not travel.
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


def manifest(workdir: Path, rules: Sequence[str] = ()) -> Manifest:
    """What ``workdir`` ships. ``rules`` are lines of gitignore's language on top of ``.mlrunignore``.

    Raises:
        RefusedError: more than SIZE_LIMIT bytes, or a symbolic link that leaves the folder.
    """
    files = sorted(select(workdir, rules))
    _require_small(workdir, files)
    for path in files:
        _require_link_inside(workdir, path)
    return Manifest(tuple(entry_of(workdir, path) for path in files))


def select(workdir: Path, rules: Sequence[str] = ()) -> set[str]:
    """The paths that are shipped, relative to ``workdir``."""
    lines = [*_lines(workdir / IGNORE_FILE), *rules]
    tracked = _git_files(workdir)
    if tracked is None:
        lines = [*_lines(workdir / ".gitignore"), *lines]
        tracked = set(_walk(workdir))
    verdict = GitIgnoreSpec.from_lines(lines).check_file
    chosen = {path for path in tracked if verdict(path).include is not True}
    if any(line.startswith("!") for line in lines):
        chosen |= {path for path in _walk(workdir) if verdict(path).include is False}
    stays = functools.cache(functools.partial(_stays, workdir))
    return {
        path for path in chosen if not any(map(stays, _prefixes(path))) and os.path.lexists(workdir / path)
    }


def pack(workdir: Path, entries: Iterable[Entry], out: IO[bytes]) -> None:
    """Write ``entries`` to ``out`` as a tar stream."""
    with tarfile.open(fileobj=out, mode="w|", bufsize=_BLOCK, format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            if entry.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
                tar.addfile(info)
                continue
            with (workdir / entry.path).open("rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)


def project_of(workdir: Path) -> str:
    """A folder name for ``workdir`` on the hosts: readable, and of this machine's folder alone."""
    place = f"{platform.node()}:{workdir.resolve()}"
    return f"{workdir.resolve().name or 'root'}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


async def ship(workdir: Path, code: Manifest, host: Host, target: str | None = None) -> str:
    """Bring the folder ``target`` of ``host`` (by default this project's) to ``code``; its path there.

    Raises:
        RefusedError: the host can't be reached, its disk is full, or what arrived isn't what was sent.
    """
    channel = _Channel(host, str(workdir))
    channel.program = ("mlrun.agent.code", target or f"{CACHE}/{project_of(workdir)}")
    await channel.start()
    try:
        return await channel.deliver(workdir, code)
    finally:
        await channel.close(timeout_s=5)


async def compare(workdir: Path, code: Manifest, host: Host, folder: str) -> None:
    """Check that ``folder`` of ``host``, which its owner keeps, holds ``code``.

    Raises:
        RefusedError: the host can't be reached, or files there are others or missing.
    """
    channel = _Channel(host, str(workdir))
    channel.program = ("mlrun.agent.code", folder, "--compare")
    await channel.start()
    try:
        lacking = await channel.compare(code)
    finally:
        await channel.close(timeout_s=5)
    if lacking:
        more = f" and {len(lacking) - 1} more differ" if len(lacking) > 1 else " differs"
        raise RefusedError(
            f"{host.name}: the code in {folder} isn't the code here: {lacking[0]}{more}",
            fix="bring it up to date, or leave workdir out for this host: then the code is sent",
        )


class _Channel(SshTransport):
    """An ssh of its own beside the agent's: code never stands in front of a heartbeat."""

    async def compare(self, code: Manifest) -> list[str]:
        return list((await self._offer(code))["lacking"])

    async def deliver(self, workdir: Path, code: Manifest) -> str:
        offer = await self._offer(code)
        lacking = set(offer["lacking"])
        entries = [entry for entry in code.entries if entry.path in lacking]
        try:
            await asyncio.wait_for(self._send_tar(workdir, entries), TRANSFER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise RefusedError(f"{self.host}: the code didn't arrive in {TRANSFER_TIMEOUT_S:.0f} s") from None
        proof = await self._answer(ANSWER_TIMEOUT_S)
        if proof["hash"] != code.code_hash:
            raise RefusedError(f"{self.host}: the code there isn't the code here, though all of it was sent")
        return str(offer["folder"])

    async def _offer(self, code: Manifest) -> dict[str, Any]:
        self._in.write(code.to_json().encode() + b"\n")
        return await self._answer(ANSWER_TIMEOUT_S)

    async def _send_tar(self, workdir: Path, entries: list[Entry]) -> None:
        sink = cast(IO[bytes], _Sink(self._in))
        try:
            await asyncio.to_thread(pack, workdir, entries, sink)
        except ConnectionError:
            return  # The far end has stopped reading; its answer says why.
        except OSError as error:
            raise RefusedError(f"{workdir} changed while it was sent to {self.host}: {error}") from error

    async def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(self._out.readline(), timeout_s)
        except asyncio.TimeoutError:
            raise RefusedError(f"{self.host}: no answer about its code within {timeout_s:.0f} s") from None
        if not line:
            raise RunFailedError(f"{self.host}: lost while its code was sent. {await self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RefusedError(f"{self.host}: the code didn't arrive: {answer['error']}")
        return answer


class _Sink(io.RawIOBase):
    """Lets a thread write to a stream of the event loop, no faster than the far end reads."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()

    def write(self, data: Any) -> int:
        asyncio.run_coroutine_threadsafe(self._write(bytes(data)), self._loop).result()
        return len(data)

    async def _write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()


def _git_files(workdir: Path) -> set[str] | None:
    """What git tracks or would track below ``workdir``; None where it isn't git's."""
    argv = ["git", "-C", str(workdir), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(argv, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if listed.returncode != 0:
        return None
    files = set()
    for path in filter(None, os.fsdecode(listed.stdout).split("\0")):
        folder = workdir / path
        if folder.is_dir() and not folder.is_symlink():
            # A submodule, or a repository within this one: git names only its folder.
            prefix = path.rstrip("/")
            inner = _git_files(folder) if (folder / ".git").exists() else set(_walk(folder))
            files |= {f"{prefix}/{name}" for name in inner or ()}
        else:
            files.add(path)
    return files


def _walk(workdir: Path) -> Iterator[str]:
    for folder, subfolders, names in os.walk(workdir):
        relative = Path(folder).relative_to(workdir)
        links = [name for name in subfolders if (workdir / relative / name).is_symlink()]
        subfolders[:] = [
            name
            for name in subfolders
            if name not in links and not _stays(workdir, (relative / name).as_posix())
        ]
        yield from ((relative / name).as_posix() for name in (*names, *links))


def _stays(workdir: Path, path: str) -> bool:
    """Whether this file or folder never travels, whatever the rules say."""
    if path in _NEVER_AT_TOP or PurePosixPath(path).name in _NEVER_NAMED:
        return True
    return any((workdir / path / mark).exists() for mark in _ENVIRONMENT_MARKS)


def _prefixes(path: str) -> Iterator[str]:
    """The folders that hold ``path``, and itself."""
    yield path
    yield from (parent.as_posix() for parent in PurePosixPath(path).parents[:-1])


def _require_small(workdir: Path, files: Sequence[str]) -> None:
    sizes: Counter[str] = Counter()
    for path in files:
        parts = PurePosixPath(path).parts
        sizes[f"{parts[0]}/" if len(parts) > 1 else path] += (workdir / path).lstat().st_size
    total = sizes.total()
    if total > SIZE_LIMIT:
        largest = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.most_common(3))
        raise RefusedError(
            f"{workdir} is {total / 1e6:.0f} MB, more than the {SIZE_LIMIT / 1e6:.0f} MB that are shipped. "
            f"Largest: {largest}",
            fix=f"Name what the run doesn't need in {workdir / IGNORE_FILE}, and put data on each host",
        )


def _require_link_inside(workdir: Path, path: str) -> None:
    file = workdir / path
    if not file.is_symlink():
        return
    target = os.readlink(file)
    end = os.path.normpath(PurePosixPath(path).parent / target)
    if os.path.isabs(target) or end == ".." or end.startswith("../"):
        raise RefusedError(
            f"{file} is a link to {target}, outside the work folder: it would lead nowhere on a host.",
            fix=f"Add {path} to {workdir / IGNORE_FILE}, or put the file itself there",
        )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
