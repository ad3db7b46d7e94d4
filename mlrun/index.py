"""Where this user's runs are, whichever folder they were started in, and which of them are alive.

One small file per run in ``$XDG_STATE_HOME/mlrun/runs`` (``~/.local/state/mlrun/runs``). Nothing depends on
it: a run folder that was moved or copied is found by its path as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from mlrun import runs
from mlrun.errors import RequestError
from mlrun.hosts import Host

_ID_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. ``pid`` and ``started`` (seconds since the epoch) are those of its latest launcher."""

    run_dir: str
    smoke: bool
    pid: int
    started: float

    @property
    def folder(self) -> Path:
        return Path(self.run_dir)

    @property
    def launcher(self) -> psutil.Process | None:
        """The launcher, if it still runs: the same process, and not another with its number."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A run that was launched from here to live on another machine: its folder there, and the way there."""

    run_dir: str
    launched: float
    """Seconds since the epoch."""
    name: str
    address: str | None
    user: str | None
    python: str | None

    @property
    def folder(self) -> Path:
        return Path(self.run_dir)

    @property
    def host(self) -> Host:
        return Host(self.name, self.address, self.user, self.python)


def short_id(run_dir: Path) -> str:
    """Six hexadecimal digits that stand for a run folder."""
    return hashlib.blake2b(str(run_dir).encode(), digest_size=_ID_DIGITS // 2).hexdigest()


def note(run_dir: Path, *, smoke: bool = False) -> None:
    """Remember that this process launches the run. Without a home to write to, it is only harder to find."""
    _write(Entry(str(run_dir), smoke, os.getpid(), psutil.Process().create_time()))


def note_elsewhere(run_dir: str, host: Host) -> Elsewhere:
    """Remember that the run lives in ``run_dir`` of ``host``."""
    entry = Elsewhere(run_dir, time.time(), host.name, host.address, host.user, host.python)
    _write(entry)
    return entry


def forget(run_dir: Path) -> None:
    """The run is gone."""
    with contextlib.suppress(OSError):
        (_folder() / short_id(run_dir)).unlink()


def entries() -> list[Entry]:
    """Every run that is still on disk, the newest launch first."""
    found = []
    for fields in _read_all():
        with contextlib.suppress(OSError, TypeError):
            entry = Entry(**fields)
            if entry.folder.is_dir():
                found.append(entry)
    return sorted(found, key=lambda entry: entry.started, reverse=True)


def elsewhere() -> list[Elsewhere]:
    """The runs that live on other machines, the newest launch first."""
    found = []
    for fields in _read_all():
        with contextlib.suppress(TypeError):
            found.append(Elsewhere(**fields))
    return sorted(found, key=lambda entry: entry.launched, reverse=True)


def entry_of(run_dir: Path) -> Entry | None:
    """What is known of one run."""
    return next((entry for entry in entries() if entry.folder == run_dir), None)


def find(runs_dir: Path, which: str, *, alone: bool = False) -> Path:
    """The folder of the run ``which``: ``last``, a path, or a name or an id or the beginning of one.

    The newest such run counts. Runs in ``runs_dir`` come first, then those of this user anywhere. ``last``
    leaves smoke runs out. ``alone``: the beginning of several is refused.

    Raises:
        RequestError: no such run; the message names those there are.
    """
    if (Path(which) / runs.SPEC_FILE).is_file():
        return Path(which).resolve()
    here, known = runs.all_runs(runs_dir), entries()
    everywhere = [*here, *(entry.folder for entry in known if entry.folder not in here)]
    if which == "last":
        alone = False
        smoke = {entry.folder for entry in known if entry.smoke}
        found = [run for run in everywhere if run not in smoke] or everywhere
    else:
        found = [run for run in everywhere if which in (run.name, short_id(run))]
        found = found[:1] or [run for run in everywhere if _begins(run, which)]
    if alone and len(found) > 1:
        those = ", ".join(run.name for run in found[:5])
        raise RequestError(f"{which!r} may mean {those}", fix="write more of the name")
    if found:
        return found[0]
    away = find_elsewhere(runs_dir, which)
    if away is not None:
        raise RequestError(
            f"{away.folder.name} lives on {away.name}, in {away.run_dir}",
            fix="do it there; attach, logs, stop and runs show work from here",
        )
    newest = ", ".join(run.name for run in everywhere[:5]) or "none"
    raise RequestError(f"no run {which!r} (newest: {newest})", fix="name one of these, or say --runs-dir")


def find_elsewhere(runs_dir: Path, which: str) -> Elsewhere | None:
    """The run ``which`` (see ``find``) if it lives on another machine; for ``last``, if it is the newest."""
    away = elsewhere()
    if which == "last":
        here = [run / runs.SPEC_FILE for run in runs.all_runs(runs_dir)]
        begun = [file.stat().st_mtime for file in here[:1]] + [entry.started for entry in entries()[:1]]
        return away[0] if away and away[0].launched > max(begun, default=0.0) else None
    exact = [entry for entry in away if which in (entry.folder.name, short_id(entry.folder))]
    return next(iter(exact or [entry for entry in away if _begins(entry.folder, which)]), None)


def _begins(run: Path, which: str) -> bool:
    """A few letters of a name may be hexadecimal digits too: of an id half is needed."""
    return run.name.startswith(which) or (len(which) * 2 >= _ID_DIGITS and short_id(run).startswith(which))


def _write(entry: Entry | Elsewhere) -> None:
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        runs.write_atomically(folder / short_id(entry.folder), json.dumps(asdict(entry)) + "\n")


def _read_all() -> Iterator[dict[str, Any]]:
    for file in _folder().glob(f"[!.]{'?' * (_ID_DIGITS - 1)}"):
        with contextlib.suppress(OSError, ValueError):
            fields = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(fields, dict):
                yield fields


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mlrun" / "runs"
