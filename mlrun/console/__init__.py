"""Three views of one stream of events: live, plain and json. They know events and nothing else of a run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from mlrun.console.base import Console
from mlrun.console.hosts import HOSTS_SCREEN, PlainHosts
from mlrun.console.json import JsonConsole
from mlrun.console.live import RUN_SCREEN, LiveConsole
from mlrun.console.plain import ErrorsConsole, PlainConsole
from mlrun.errors import RequestError

__all__ = ["KINDS", "Console", "open_console", "open_hosts_console"]

KINDS = ("live", "plain", "json", "off")


def open_console(
    kind: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.time
) -> Console:
    """A view of the run, to be given every event in order and closed at the end.

    ``live`` becomes ``plain`` where ``stream`` (stdout; stderr for ``off``) is not a terminal. ``clock``:
    what time it is for the run, in seconds since the epoch.

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
    if kind == "live" and _draws(out):
        return LiveConsole(out, RUN_SCREEN, clock)
    return PlainConsole(out)


def open_hosts_console(kind: str) -> Console:
    """A view of hosts without a run, on stdout.

    Raises:
        RequestError: no such view.
    """
    if kind not in ("live", "plain", "json"):
        raise RequestError(f"no console {kind!r} of hosts", fix="choose one of live, plain, json")
    if kind == "json":
        return JsonConsole(sys.stdout)
    return (
        LiveConsole(sys.stdout, HOSTS_SCREEN)
        if kind == "live" and _draws(sys.stdout)
        else PlainHosts(sys.stdout)
    )


def _draws(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
