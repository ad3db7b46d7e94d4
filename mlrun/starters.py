"""The shipped specs: where they are, and copies of them to start from."""

from __future__ import annotations

import re
from pathlib import Path

from mlrun.errors import RequestError

KINDS = {"digits": "digits.yaml", "resnet50": "resnet.yaml", "script": "script.yaml"}
CODE = {"script": "mytask.py"}
"""What the spec of a kind imports."""
SCHEMA = "spec.schema.json"
_SCHEMA_LINE = re.compile(r"^# yaml-language-server: .*$", re.MULTILINE)


def folder() -> Path:
    """The folder of the shipped specs: inside the installed package, or ``configs/`` of the checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def write(kind: str, path: Path, *, force: bool = False) -> list[Path]:
    """Copy the shipped spec ``kind`` (a key of KINDS) to ``path``, its paths made right for there.

    Code that it imports goes beside it, and never over a file that is there. Returns what was written.

    Raises:
        RequestError: an unknown kind, a file that is there already, or a path that can't be written.
    """
    if kind not in KINDS:
        raise RequestError(f"no starting spec {kind!r}", fix=f"choose one of {', '.join(KINDS)}")
    text = (folder() / KINDS[kind]).read_text(encoding="utf-8")
    text = _SCHEMA_LINE.sub(lambda _: f"# yaml-language-server: $schema={folder() / SCHEMA}", text, count=1)
    text = text.replace("cd configs && ", "").replace(f"launch {KINDS[kind]}", f"launch {path}")
    text = text.replace(f"configs/{KINDS[kind]}", str(path))
    written = [path]
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
        code = path.with_name(CODE[kind]) if kind in CODE else None
        if code is not None and not code.exists():
            code.write_text((folder() / CODE[kind]).read_text(encoding="utf-8"), encoding="utf-8")
            written.append(code)
    except FileExistsError:
        raise RequestError(
            f"{path} is there already", fix="name another file, or overwrite it with --force"
        ) from None
    except OSError as error:
        raise RequestError(
            f"{path} can't be written: {error.strerror}", fix="name a file that you may write"
        ) from None
    return written
