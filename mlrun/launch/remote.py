"""A host over ssh beside its agent: code and checkpoints go there, logs and checkpoints come back.

Every transfer is an ssh of its own, so that nothing big stands in front of a heartbeat.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from mlrun import runs
from mlrun.agent.code import Manifest, entry_of
from mlrun.agent.results import CHECKPOINTS, REMOVE
from mlrun.errors import MlrunError, RunFailedError
from mlrun.hosts import Host
from mlrun.launch import ship
from mlrun.launch.ssh import SshTransport

RUNS = "~/.local/share/mlrun/runs"
"""On a host: one folder per generation of a run, gone once all of it has come back."""
TRANSFER_TIMEOUT_S = 1800.0

_ARRIVING = ".arriving-"


class Remote:
    """One host of one generation. ``run_dir`` is the folder of the run there."""

    def __init__(self, host: Host, workdir: str, local_run_dir: Path, run_id: str) -> None:
        self._host = host
        self._workdir = Path(workdir)
        self._local = local_run_dir
        self.run_dir = f"{RUNS}/{run_id}"
        self._one_at_a_time = asyncio.Lock()

    async def send_code(self, code: Manifest) -> str:
        """Bring the work folder there; returns where it lies. A host's own ``workdir`` is only compared.

        Raises:
            RefusedError: it didn't arrive, or the host's own folder holds other code.
        """
        if self._host.workdir is not None:
            await ship.compare(self._workdir, code, self._host, self._host.workdir)
            return self._host.workdir
        return await ship.ship(self._workdir, code, self._host)

    async def send_checkpoint(self, folder: Path) -> str:
        """Bring a checkpoint there, for the workers to go on from; returns where it lies.

        Raises:
            RefusedError: it didn't arrive.
        """
        paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        content = Manifest(tuple(entry_of(folder, path) for path in paths))
        target = f"{self.run_dir}/{runs.CHECKPOINTS}/{folder.name}"
        return await ship.ship(folder, content, self._host, target)

    def here(self, path: str) -> str:
        """Where a checkpoint of the host is, or will be, in the run folder on this machine."""
        return str(self._local / runs.CHECKPOINTS / PurePosixPath(path).name)

    @property
    def busy(self) -> bool:
        """Whether something is on its way here."""
        return self._one_at_a_time.locked()

    async def bring_checkpoints(self) -> str | None:
        """Copy new checkpoints into the run folder; None, or why that failed."""
        return await self._bring("checkpoints")

    async def bring_everything(self) -> str | None:
        """Move logs, timelines and checkpoints into the run folder; None, or why that failed."""
        return await self._bring("everything")

    async def _bring(self, what: str) -> str | None:
        async with self._one_at_a_time:
            try:
                await asyncio.wait_for(self._fetch(what), TRANSFER_TIMEOUT_S)
            except asyncio.TimeoutError:
                return f"not done after {TRANSFER_TIMEOUT_S:.0f} s"
            except MlrunError as error:
                return error.message
            except (tarfile.TarError, OSError, ValueError) as error:
                return str(error)
            return None

    async def _fetch(self, what: str) -> None:
        channel = _Channel(self._host, str(self._workdir))
        have = [path.name for path in (self._local / runs.CHECKPOINTS).glob("step-*")]
        channel.program = ("mlrun.agent.results", self.run_dir, what, *have)
        await channel.start()
        try:
            await channel.unpack_into(self._local, remove=what == "everything")
        finally:
            await channel.close(timeout_s=10)


class _Channel(SshTransport):
    async def unpack_into(self, folder: Path, *, remove: bool) -> None:
        source = cast(IO[bytes], _Source(self._out))
        try:
            await asyncio.to_thread(_unpack, source, folder)
        except tarfile.TarError as error:
            raise RunFailedError(await self.last_words() or str(error)) from error
        if remove:
            self._in.write(REMOVE)


class _Source:
    """Lets a thread read from a stream of the event loop."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()

    def read(self, size: int) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._stream.read(size), self._loop).result()


def _unpack(source: IO[bytes], folder: Path) -> None:
    """Take in what ``mlrun.agent.results`` sends. Logs are appended to, checkpoints appear when whole."""
    root = folder / runs.CHECKPOINTS
    listing: dict[str, Any] = {"names": [], "best": None}
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 18) as tar:
            for member in tar:
                content = tar.extractfile(member)
                path = PurePosixPath(member.name)
                if content is None or path.is_absolute() or ".." in path.parts:
                    raise tarfile.TarError(f"{member.name!r} isn't a file of a run")
                if member.name == CHECKPOINTS:
                    listing = json.load(content)
                    continue
                target = folder / path
                if path.parts[0] == runs.CHECKPOINTS:
                    target = root / f"{_ARRIVING}{path.parts[1]}" / Path(*path.parts[2:])
                    target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("ab" if target.suffix == ".log" else "wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
        _take_over(root, listing)
    finally:
        for leftover in root.glob(f"{_ARRIVING}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _take_over(root: Path, listing: dict[str, Any]) -> None:
    """Let the checkpoints here be those there."""
    names, best = set(listing["names"]), listing["best"]
    for arrived in root.glob(f"{_ARRIVING}*"):
        if (arrived / runs.STATE_FILE).is_file():
            arrived.rename(root / arrived.name.removeprefix(_ARRIVING))
    link = root / "best"
    if best is not None and (root / best).is_dir():
        new = root / f"{_ARRIVING}best"
        new.symlink_to(best, target_is_directory=True)
        os.replace(new, link)
    spared = os.readlink(link) if link.is_symlink() else None
    if names:
        for old in root.glob("step-*"):
            # Those after the newest are of a run that went back to an earlier one: the user's alone.
            if old.name not in names and old.name != spared and old.name < max(names):
                shutil.rmtree(old, ignore_errors=True)
