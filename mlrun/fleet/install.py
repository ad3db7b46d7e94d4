"""``mlrun hosts install``: the environment of this machine, on every host."""

from __future__ import annotations

import asyncio
import os
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlrun.errors import ExitCode, RefusedError, RequestError
from mlrun.fleet.requirements import Needed, needed
from mlrun.fleet.shell import Say, on_each, run_script
from mlrun.fleet.wheels import OURS, installed_for, pack_wheel, pin
from mlrun.hosts import Host
from mlrun.launch.ssh import shell_path, swap_home

TIMEOUT_S = 3600.0
"""Frameworks are large, and so are the rooms that share one line to the internet."""

_EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "sim": None}
"""Framework -> the extra that brings it."""
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

# A fresh environment only where there is none of this Python: a second installation takes seconds.
_SCRIPT = """\
arriving="$root/arriving"
venv="$root/venv"
rm -rf "$arriving"
mkdir -p "$arriving" || fail "can't make $arriving"
tar -xf - -C "$arriving" || fail "what was sent didn't arrive: is its disk full?"
cd "$arriving"
fits='import sys, ensurepip, venv; sys.exit("%d.%d" % sys.version_info[:2] != "{python}")'
uv=
for p in "$HOME/.local/bin/uv" /opt/homebrew/bin/uv /usr/local/bin/uv "$HOME/.cargo/bin/uv"; do
  [ -x "$p" ] && uv=$p && break
done
if ! "$venv/bin/python" -c "$fits" </dev/null >/dev/null 2>&1; then
  rm -rf "$venv"
  base=
  for p in {pythons} "$(command -v python{python})"; do
    if [ -x "$p" ] && "$p" -c "$fits" </dev/null >/dev/null 2>&1; then base=$p; break; fi
  done
  if [ -n "$base" ]; then
    say "a new environment with $base"
    "$base" -m venv "$venv" </dev/null >&2 || fail "the environment can't be made"
  elif [ -n "$uv" ]; then
    say "a new environment with Python {python} by uv"
    "$uv" venv -q --seed --python {python} "$venv" </dev/null >&2 || fail "the environment can't be made"
  else
    fail "there is no Python {python}, which mlrun runs in here (brew install python@{python} brings it)"
  fi
fi
if [ -n "$uv" ]; then
  install() {{ "$uv" pip install -q --python "$venv/bin/python" "$@" </dev/null >&2; }}
else
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
  install() {{ "$venv/bin/python" -m pip install -q "$@" </dev/null >&2; }}
fi
say "installing"
install {index} --find-links wheels -c constraints.txt -r requirements.txt || fail "not all was installed"
install --no-index --no-deps --force-reinstall wheels/{wheel} || fail "mlrun itself wasn't installed"
cd "$root" && rm -rf "$arriving"
say "$("$venv/bin/python" -c 'import mlrun, sys; print("mlrun", mlrun.__version__, "in", sys.prefix)')"
"""


def install(hosts: Sequence[Host], framework: str, *, offline: bool, say: Say) -> ExitCode:
    """Give every host mlrun as it is here, ``framework`` in the same version, and what the project needs.

    The project is the work folder. With ``offline`` all packages are sent from here.

    Raises:
        RequestError: an unknown framework, or requirements that can't be read.
        RefusedError: something isn't installed here that should be on the hosts, or in another version.
    """
    if framework not in _EXTRAS:
        raise RequestError(f"no framework {framework!r}", fix=f"choose one of {', '.join(_EXTRAS)}")
    extra = _EXTRAS[framework]
    project = needed(Path.cwd())
    wanted = [Requirement(f"{OURS}[{extra}]" if extra else OURS), *project.requirements]
    chosen = installed_for(wanted, complete=offline)
    _refuse_others(project, chosen)
    ours = next(each for each in chosen if each.name == OURS)
    with tempfile.TemporaryDirectory(prefix="mlrun-install-") as folder:
        root = Path(folder)
        (root / "wheels").mkdir()
        wheel = pack_wheel(ours, root / "wheels").name
        if offline:
            for each in chosen:
                if each is not ours:
                    pack_wheel(each, root / "wheels")
        (root / "constraints.txt").write_text("\n".join([*map(pin, chosen), *map(str, project.pins), ""]))
        (root / "requirements.txt").write_text("\n".join([*map(str, wanted), ""]))
        parcel = _pack(root)
        script = {"python": _PYTHON, "wheel": wheel, "index": "--no-index" if offline else ""}

        async def one(host: Host, tell: Say) -> None:
            tell(f"sending {parcel.stat().st_size / 1e6:.0f} MB")
            pythons = " ".join(map(shell_path, _pythons(host)))
            text = _SCRIPT.format(pythons=pythons, **script)
            await run_script(host, text, timeout_s=TIMEOUT_S, say=tell, attachment=parcel)

        return asyncio.run(on_each(hosts, one, say))


def _pack(root: Path) -> Path:
    parcel = root / "parcel.tar"
    with tarfile.open(parcel, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("wheels", "constraints.txt", "requirements.txt"):
            tar.add(root / name, name)
    return parcel


def _refuse_others(needed: Needed, chosen: Sequence[Distribution]) -> None:
    """Hosts get the versions of here, so what is installed here must be what the project asks for."""
    here = {canonicalize_name(each.name): each.version for each in chosen}
    for wanted in (*needed.requirements, *needed.pins):
        version = here.get(canonicalize_name(wanted.name))
        counts = wanted.marker is None or wanted.marker.evaluate()
        if counts and version is not None and not wanted.specifier.contains(version, prereleases=True):
            raise RefusedError(
                f"{needed.file} asks for {wanted.name}{wanted.specifier}, and here is {version}",
                fix="install here what it asks for (uv sync, pip install -r), then hosts get the same",
            )


def _pythons(host: Host) -> list[str]:
    """Where a Python of this version may be on ``host``."""
    mine = swap_home(os.path.realpath(sys.executable), str(Path.home()))
    usual = [
        f"{folder}/python{_PYTHON}" for folder in ("/opt/homebrew/bin", "/usr/local/bin", "~/.local/bin")
    ]
    return [*([host.python] if host.python else []), mine, *usual]
