"""Where a spec's data lies on this machine. No framework is imported here: the launcher asks too."""

from __future__ import annotations

from pathlib import Path

from mlrun.data.folder import Folder, LocalFolder
from mlrun.data.own import own_data
from mlrun.errors import RequestError
from mlrun.spec import JobSpec
from mlrun.spec.training import FILES_OF


def open_data(spec: JobSpec) -> Folder:
    """The files of the spec's source, wherever ``data.location`` says.

    Raises:
        RequestError, DataError: they can't be reached or listed.
    """
    if spec.data.location != "each-host":
        return own_data.open_remote(spec)
    folder = data_folder(spec)
    assert folder is not None
    try:
        return LocalFolder(folder, spec.data.source)
    except OSError as error:
        raise RequestError(f"data.path: {error.filename} can't be read: {error.strerror}") from error


def data_folder(spec: JobSpec) -> Path | None:
    """``data.path`` with ``~`` expanded, relative to ``workdir``; None where the spec has no path."""
    return None if spec.data.path is None else in_workdir(spec, spec.data.path)


def in_workdir(spec: JobSpec, path: str) -> Path:
    """``path`` with ``~`` expanded, relative to ``workdir``."""
    return Path(spec.workdir or ".").expanduser() / Path(path).expanduser()


def data_missing(spec: JobSpec) -> str | None:
    """What of the spec's data isn't on this machine and should be, as a sentence; None where all is there."""
    folder = data_folder(spec)
    if spec.data.location != "each-host":
        return None
    if folder is None:
        return f"data.source {spec.data.source} needs data.path" if spec.data.source in FILES_OF else None
    if not folder.exists():
        return f"data.path: there is no {'folder' if spec.data.source == 'imagefolder' else 'file'} {folder}"
    if spec.data.source == "imagefolder" and not folder.is_dir():
        return f"data.path: {folder} is a file, not a folder"
    return None
