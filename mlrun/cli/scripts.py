"""From ``mlrun launch SCRIPT.py -- ARGS`` to the keys of a spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mlrun.errors import RequestError


def of_command(
    target: str | None, module: str | None, arguments: list[str], *, horovod: bool, independent: bool
) -> dict[str, Any] | None:
    """The spec of a script; None where ``target`` is a spec's file.

    Raises:
        RequestError: nothing to launch, no such script, or options that only scripts have beside a spec.
    """
    run: dict[str, Any] = {"horovod": horovod, "independent": independent}
    if module is not None:
        # click takes the first argument of the module for the spec's place
        run |= {"module": module, "args": [*([target] if target is not None else []), *arguments]}
        return {"name": _name(module), "run": run}
    if target is None:
        raise RequestError("nothing to launch", fix="name a spec or a script, as in mlrun launch digits.yaml")
    if not target.endswith(".py"):
        if arguments or horovod or independent:
            what = "arguments are" if arguments else "--horovod and --independent are"
            raise RequestError(f"{what} for scripts, and {target} is a spec", fix="say it under run: there")
        return None
    script = _in_work_folder(Path(target))
    return {"name": _name(script.stem), "run": {**run, "script": str(script), "args": arguments}}


def _in_work_folder(script: Path) -> Path:
    """From the current folder, which is the work folder that travels to the hosts."""
    if not script.is_file():
        raise RequestError(f"there is no script {script}", fix="check the path, or cd to its project first")
    try:
        return script.resolve().relative_to(Path.cwd().resolve())
    except ValueError:
        raise RequestError(
            f"{script} isn't below this folder, which is what other hosts get",
            fix=f"cd {script.resolve().parent}",
        ) from None


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("._-") or "script"
