"""Where this user's runs are, whichever folder they were started in, and which of them are alive.

One small file per run in ``$XDG_STATE_HOME/mlrun/runs`` (``~/.local/state/mlrun/runs``). Nothing depends on
it: a run folder that was moved or copied is found by its path as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from mlrun import runs
from mlrun.errors import RequestError

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


def short_id(run_dir: Path) -> str:
    """Six hexadecimal digits that stand for a run folder."""
    return hashlib.blake2b(str(run_dir).encode(), digest_size=_ID_DIGITS // 2).hexdigest()


def note(run_dir: Path, *, smoke: bool = False) -> None:
    """Remember that this process launches the run. Without a home to write to, it is only harder to find."""
    entry = Entry(str(run_dir), smoke, os.getpid(), psutil.Process().create_time())
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        runs.write_atomically(folder / short_id(run_dir), json.dumps(asdict(entry)) + "\n")


def forget(run_dir: Path) -> None:
    """The run is gone."""
    with contextlib.suppress(OSError):
        (_folder() / short_id(run_dir)).unlink()


def entries() -> list[Entry]:
    """Every run that is still on disk, the newest launch first."""
    found = []
    for file in _folder().glob(f"[!.]{'?' * (_ID_DIGITS - 1)}"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            entry = Entry(**json.loads(file.read_text(encoding="utf-8")))
            if entry.folder.is_dir():
                found.append(entry)
    return sorted(found, key=lambda entry: entry.started, reverse=True)


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
    newest = ", ".join(run.name for run in everywhere[:5]) or "none"
    raise RequestError(f"no run {which!r} (newest: {newest})", fix="name one of these, or say --runs-dir")


def _begins(run: Path, which: str) -> bool:
    """A few letters of a name may be hexadecimal digits too: of an id half is needed."""
    return run.name.startswith(which) or (len(which) * 2 >= _ID_DIGITS and short_id(run).startswith(which))


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mlrun" / "runs"
