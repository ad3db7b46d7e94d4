"""Running the system's command-line tools: each call has a deadline, and none outlives the agent."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LIMIT_S = 3.0
"""How long a tool may take for one answer."""
# An ssh session's PATH has neither Homebrew's folders nor, on some systems, the administrator's.
_MORE_FOLDERS = ("/usr/sbin", "/usr/bin", "/opt/homebrew/bin", "/usr/local/bin")

_children: set[subprocess.Popen[bytes]] = set()


def find(name: str) -> str | None:
    """The path of a tool; None where it isn't installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_MORE_FOLDERS]))


def answer(*command: str) -> bytes:
    """The standard output of ``command``.

    Raises:
        OSError, subprocess.SubprocessError: it can't be run, failed, or took too long.
    """
    with _started(command) as child:
        output, _ = child.communicate(timeout=LIMIT_S)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return output


def lines(*command: str) -> Iterator[bytes]:
    """Every whole line that ``command`` writes, until it ends.

    Raises:
        OSError: it can't be run, or was silent for too long.
    """
    with _started(command) as child:
        assert child.stdout is not None
        output, rest = child.stdout.fileno(), b""
        while True:
            if not select.select([output], [], [], LIMIT_S)[0]:
                raise TimeoutError(f"{command[0]} was silent for {LIMIT_S:g} s")
            if not (piece := os.read(output, 1 << 16)):
                return
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole


def end_all() -> None:
    """Kill what still runs; whoever waits for it gets its end."""
    for child in list(_children):
        child.kill()


@contextmanager
def _started(command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LANG": "C", "LC_ALL": "C"},
    )
    _children.add(child)
    try:
        yield child
    finally:
        _children.discard(child)
        child.kill()
        assert child.stdout is not None
        child.stdout.close()
        # What the kernel can't end now (a hung driver) is left to it.
        with suppress(subprocess.TimeoutExpired):
            child.wait(LIMIT_S)
