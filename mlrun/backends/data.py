"""Where a spec's data lies on this machine. No framework is imported here: the launcher asks too."""

from __future__ import annotations

from pathlib import Path

from mlrun.spec import JobSpec

NEEDS_PATH = frozenset({"imagefolder", "csv", "jsonl"})
"""Sources that read files."""


def data_folder(spec: JobSpec) -> Path | None:
    """``data.path`` with ``~`` expanded, relative to ``workdir``; None where the spec has no path."""
    return None if spec.data.path is None else in_workdir(spec, spec.data.path)


def in_workdir(spec: JobSpec, path: str) -> Path:
    """``path`` with ``~`` expanded, relative to ``workdir``."""
    return Path(spec.workdir or ".").expanduser() / Path(path).expanduser()


def data_missing(spec: JobSpec) -> str | None:
    """What of the spec's data isn't on this machine, as a sentence; None where all is there."""
    folder = data_folder(spec)
    if folder is None:
        return f"data.source {spec.data.source} needs data.path" if spec.data.source in NEEDS_PATH else None
    if not folder.exists():
        return f"data.path: there is no {'folder' if spec.data.source == 'imagefolder' else 'file'} {folder}"
    if spec.data.source == "imagefolder" and not folder.is_dir():
        return f"data.path: {folder} is a file, not a folder"
    return None
