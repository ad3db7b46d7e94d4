"""The shipped specs: where they are, and copies of them to start from."""

from __future__ import annotations

import re
from pathlib import Path

from mlrun.errors import RequestError

KINDS = {"digits": "digits.yaml", "resnet50": "resnet.yaml", "script": "script.yaml"}
SCHEMA = "spec.schema.json"
_SCHEMA_LINE = re.compile(r"^# yaml-language-server: .*$", re.MULTILINE)


def folder() -> Path:
    """The folder of the shipped specs: inside the installed package, or ``configs/`` of the checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def write(kind: str, path: Path, *, force: bool = False) -> None:
    """Copy the shipped spec ``kind`` (a key of KINDS) to ``path``, its schema line made right for there.

    Raises:
        RequestError: an unknown kind, a file that is there already, or a path that can't be written.
    """
    if kind not in KINDS:
        raise RequestError(f"no starting spec {kind!r}", fix=f"choose one of {', '.join(KINDS)}")
    text = (folder() / KINDS[kind]).read_text(encoding="utf-8")
    text = _SCHEMA_LINE.sub(lambda _: f"# yaml-language-server: $schema={folder() / SCHEMA}", text, count=1)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(
            f"{path} is there already", fix="name another file, or overwrite it with --force"
        ) from None
    except OSError as error:
        raise RequestError(
            f"{path} can't be written: {error.strerror}", fix="name a file that you may write"
        ) from None
