"""Three views of one stream of events: live, plain and json. They know events and nothing else of a run."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from mlrun.console.base import Console
from mlrun.console.json import JsonConsole
from mlrun.console.live import LiveConsole
from mlrun.console.plain import ErrorsConsole, PlainConsole
from mlrun.errors import RequestError

__all__ = ["KINDS", "Console", "open_console"]

KINDS = ("live", "plain", "json", "off")


def open_console(kind: str, *, stream: TextIO | None = None) -> Console:
    """A view of the run, to be given every event in order and closed at the end.

    ``live`` becomes ``plain`` where ``stream`` (stdout; stderr for ``off``) is not a terminal.

    Raises:
        RequestError: no such view.
    """
    if kind not in KINDS:
        raise RequestError(f"no console {kind!r}", fix=f"choose one of {', '.join(KINDS)}")
    out = stream or (sys.stderr if kind == "off" else sys.stdout)
    if kind == "json":
        return JsonConsole(out)
    if kind == "off":
        return ErrorsConsole(out)
    if kind == "live" and out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveConsole(out)
    return PlainConsole(out)
