"""What a project needs: its lock file, or else its ``requirements.txt``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from mlrun.errors import RequestError

_PROJECT_ITSELF = ("virtual", "editable", "directory")
"""What uv writes as the source of a package that lies in the project's own folders."""


@dataclass(frozen=True, slots=True)
class Needed:
    """``pins`` hold for what the ``requirements`` bring with them."""

    requirements: list[Requirement] = field(default_factory=list)
    pins: list[Requirement] = field(default_factory=list)
    file: str = ""


def needed(folder: Path) -> Needed:
    """What the project in ``folder`` needs, by the first of pylock.toml, uv.lock and requirements.txt.

    Raises:
        RequestError: the file can't be read (with file and line), or asks for what no index has.
    """
    readers: dict[str, Callable[[Path], Needed]] = {
        "pylock.toml": _read_pylock,
        "uv.lock": _read_uv_lock,
        "requirements.txt": _read_lines,
    }
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder / name)
    return Needed()


def _read_pylock(file: Path) -> Needed:
    """PEP 751: every package of the lock, each with the marker of where it is wanted."""
    packages = _packages(file, "packages")
    wanted = [_pinned(file, p, p.get("marker")) for p in packages if "directory" not in p]
    return Needed(wanted, [], file.name)


def _read_uv_lock(file: Path) -> Needed:
    """What the project asks for itself, and pins for the rest where the lock has one version of it."""
    packages = _packages(file, "package")
    versions = Counter(package["name"] for package in packages)
    others = [package for package in packages if not _is_project(package)]
    locked = {package["name"]: package for package in others if versions[package["name"]] == 1}
    asked = [
        wanted
        for package in packages
        if _is_project(package)
        for wanted in package.get("dependencies", ())
        if wanted["name"] in {other["name"] for other in others}
    ]
    direct = [
        _pinned(file, {**locked.get(w["name"], {}), **w}, w.get("marker"), w.get("extra")) for w in asked
    ]
    return Needed(direct, [_pinned(file, package, None) for package in locked.values()], file.name)


def _read_lines(file: Path) -> Needed:
    """The packages that are asked for; options (``--index-url``) are those of the project's own pip."""
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text = line.split(" #")[0].strip()
        if not text or text.startswith(("#", "--hash")):
            continue
        try:
            found.append(Requirement(text.split(" --hash")[0].rstrip("\\ ")))
        except InvalidRequirement as error:
            raise RequestError(
                f"{file}:{number}: {text!r} isn't a package and its version: {error}",
                fix="write one a line, as in timm==1.0.9",
            ) from error
    return Needed(found, [], file.name)


def _packages(file: Path, key: str) -> list[dict[str, Any]]:
    try:
        packages = tomli.loads(file.read_text(encoding="utf-8")).get(key, [])
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{file}: not a lock file: {error}", fix="write it again with your tool"
        ) from error
    return [package for package in packages if "name" in package]


def _is_project(package: dict[str, Any]) -> bool:
    return any(kind in package.get("source", {}) for kind in _PROJECT_ITSELF)


def _pinned(
    file: Path, package: dict[str, Any], marker: str | None, extras: Iterable[str] | None = None
) -> Requirement:
    name, version = canonicalize_name(package["name"]), package.get("version")
    if version is None or "git" in package.get("source", {}) or "vcs" in package or "archive" in package:
        raise RequestError(
            f"{file}: {name} comes from no index, so hosts can't fetch it by its version",
            fix="lock a released version of it, or put its files into the work folder",
        )
    extra = f"[{','.join(extras)}]" if extras else ""
    return Requirement(f"{name}{extra}=={Version(version).public}" + (f"; {marker}" if marker else ""))
