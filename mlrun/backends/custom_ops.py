"""Builds and loads the custom operations of a spec, on the host that trains with them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlrun import ops
from mlrun.backends.data import in_workdir
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

BUILD_TIMEOUT_S = 600.0
LIBRARIES = (".so", ".dylib")
SOURCES = (".cc", ".cpp", ".mm")
_LAST_LINES = 30


def load_custom_ops(spec: JobSpec, flags: Callable[[], Sequence[str]], load: Callable[[Path], Any]) -> None:
    """Load each file of ``spec.custom_ops`` in order, building those that are source.

    ``flags`` are the framework's, for the compiler; ``load`` takes a library in, and gives what model code
    calls.

    Raises:
        RequestError: a file isn't there, doesn't compile, or can't be loaded.
    """
    for written in spec.custom_ops:
        path = in_workdir(spec, written)
        if not path.is_file():
            raise RequestError(f"custom_ops: there is no file {path}", fix="correct the path, or workdir")
        if path.suffix == ".py":
            ops.offer(path.stem, _imported(path))
            continue
        if path.suffix not in (*SOURCES, *LIBRARIES):
            known = ", ".join((*SOURCES, *LIBRARIES, ".py"))
            raise RequestError(f"custom_ops: {written} is neither source nor library", fix=f"give {known}")
        built = build(path, flags()) if path.suffix in SOURCES else path
        try:
            ops.offer(path.stem, load(built))
        except Exception as error:  # frameworks raise errors of their own
            raise RequestError(
                f"custom_ops: {path} can't be loaded: {str(error).splitlines()[0]}",
                fix="build it against the framework that is installed here, or give its source",
            ) from error


def build(source: Path, flags: Sequence[str]) -> Path:
    """The library compiled from ``source``, which is built once for each content, compiler and ``flags``.

    Raises:
        RequestError: no compiler here, or it refuses the source: with the compiler's own words.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        install = "xcode-select --install" if sys.platform == "darwin" else "install g++"
        raise RequestError(f"custom_ops: {source.name} needs the compiler {compiler[0]}", fix=install)
    command = [*compiler, "-O2", "-w", "-fPIC", "-shared", *_platform_flags(source)]
    key = hashlib.sha256(b"\0".join([source.read_bytes(), *(part.encode() for part in (*command, *flags))]))
    target = _cache() / key.hexdigest()[:16] / f"{source.stem}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            _compile([*command, str(source), "-o", str(made), *flags], source)
            made.replace(target)  # at once, since other workers of this host may build it too
    return target


def _compile(command: Sequence[str], source: Path) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"custom_ops: the compiler hasn't done with {source} for {BUILD_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[:_LAST_LINES])
        raise RequestError(f"custom_ops: {source} doesn't compile:\n{said}", fix=f"correct {source.name}")


def _platform_flags(source: Path) -> list[str]:
    """
    Raises:
        RequestError: a source for Metal, elsewhere than on a Mac.
    """
    if sys.platform == "darwin":
        metal = ["-fobjc-arc", "-framework", "Metal", "-framework", "Foundation"]
        return ["-undefined", "dynamic_lookup", *(metal if source.suffix == ".mm" else [])]
    if source.suffix == ".mm":
        raise RequestError(
            f"custom_ops: {source.name} is Objective-C++, which only a Mac builds",
            fix="leave it out of custom_ops for hosts that aren't Macs",
        )
    return []


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mlrun" / "ops"


def _imported(path: Path) -> Any:
    """A Python file that registers operations itself.

    Raises:
        RequestError: it raises an exception.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RequestError(f"custom_ops: {path} raised {type(error).__name__}: {error}") from error
    return module
