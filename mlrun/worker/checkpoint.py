"""Checkpoints: whole or absent, whatever ends the process.

A checkpoint is a folder ``step-00000120`` holding what the backend saved and ``state.json``. It is written
under another name, flushed to the disk, and renamed as the last act: a folder of that name is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mlrun.errors import RequestError, RunFailedError

STATE_FILE = "state.json"
FORMAT = 1
BEST = "best"
_PREFIX = "step-"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True)
class State:
    """Where the training stood: ``state.json``."""

    step: int
    """Completed optimizer steps."""
    epoch: int
    """Epoch of the next step, from 0."""
    position: int
    """Optimizer steps completed within the epoch."""
    seed: int
    world_size: int
    global_batch_size: int
    model: str
    """Fingerprint of the model."""
    data: str
    """Fingerprint of the dataset."""
    hash: str
    """``Backend.state_hash`` of what was saved; loading must give it again."""
    metrics: dict[str, float]
    best: float | None
    """Best value of the monitored metric."""
    evaluations_since_best: int
    versions: dict[str, Any]
    format: int = field(default=FORMAT)


def folder_name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


def write(root: Path, state: State, save: Callable[[Path], None]) -> Path:
    """Write a checkpoint below ``root``; ``save`` fills the folder it is given. Returns the folder.

    Raises:
        RunFailedError: the disk is full, or the folder can't be written.
    """
    try:
        return _write(root, state, save)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunFailedError(
            f"the checkpoint of step {state.step} can't be written below {root}: {why}",
            fix="make room or allow writing there, then mlrun resume last",
        ) from error


def _write(root: Path, state: State, save: Callable[[Path], None]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    final = root / folder_name(state.step)
    unfinished = root / f"{_UNFINISHED}{final.name}"
    unfinished.mkdir()
    save(unfinished)
    text = json.dumps(dataclasses.asdict(state), indent=2, allow_nan=False)
    (unfinished / STATE_FILE).write_text(text + "\n", encoding="utf-8")
    for path in unfinished.rglob("*"):
        _flush(path)
    _flush(unfinished)
    if final.exists():
        os.rename(final, root / f"{_UNFINISHED}old-{final.name}")
    os.rename(unfinished, final)
    _flush(root)
    return final


def read(folder: Path) -> State:
    """The state of a checkpoint.

    Raises:
        RequestError: the folder isn't a checkpoint, or not one this version can read.
    """
    path = folder / STATE_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise RequestError(
                f"{path}: checkpoint format {fields['format']}, but this version of mlrun reads {FORMAT}",
                fix="resume with the version of mlrun that wrote it (see versions in the file)",
            )
        hints = typing.get_type_hints(State)
        return State(**{name: fields[name] for name in hints})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{folder} isn't a whole checkpoint ({type(error).__name__}: {error})",
            fix=f"resume from another checkpoint in {folder.parent}",
        ) from error


def all_of(root: Path) -> list[Path]:
    """Whole checkpoints below ``root``, oldest first."""
    return sorted(p for p in root.glob(f"{_PREFIX}*") if (p / STATE_FILE).is_file())


def latest(root: Path) -> Path | None:
    """The newest whole checkpoint below ``root``."""
    return next(reversed(all_of(root)), None)


def mark_best(root: Path, folder: Path) -> None:
    """Point ``root/best`` at ``folder``, in one step."""
    link = root / f"{_UNFINISHED}{BEST}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name, target_is_directory=True)
    os.replace(link, root / BEST)


def prune(root: Path, keep: int, step: int) -> None:
    """Of the checkpoints up to ``step``, remove all but the last ``keep`` and the best one.

    Later ones are there when a run went back to an early checkpoint; they are nobody's but the user's.
    """
    best = root / BEST
    spared = best.resolve().name if best.exists() else None
    for folder in [p for p in all_of(root) if p.name <= folder_name(step)][:-keep]:
        if folder.name != spared:
            doomed = root / f"{_UNFINISHED}{folder.name}"
            os.rename(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes on disk."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
