"""Shell scripts on hosts that may not have mlrun yet: a POSIX sh over ssh is all they need."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from mlrun.errors import ExitCode, MlrunError, RefusedError
from mlrun.hosts import Host
from mlrun.launch.here import on_this_machine
from mlrun.launch.ssh import REMOTE_COMMAND, ssh_command
from mlrun.launch.ssh_failures import explain

ROOT = "$HOME/.local/share/mlrun"
"""The one folder of ours on a host, as sh writes it."""

Say = Callable[[str], None]

_CHUNK = 1 << 18
# `say` begins a line of its own, whatever was printed before it; `fail` ends the script.
_PRELUDE = """\
say() {{ printf '\\n%s %s\\n' {nonce} "$*"; }}
fail() {{ say "failed $*"; exit 1; }}
root="{root}"
"""


async def run_script(
    host: Host, script: str, *, timeout_s: float, say: Say, attachment: Path | None = None
) -> None:
    """Run ``script`` on ``host``; its input is the file ``attachment``.

    What it gives to its function ``say`` reaches ``say`` here; its function ``fail`` ends it with a reason.

    Raises:
        RefusedError: the host can't be reached, the script failed, or it took longer than ``timeout_s``.
    """
    nonce = f"mlrun-{secrets.token_hex(8)}"
    whole = (_PRELUDE.format(nonce=nonce, root=ROOT) + script + "\nsay done\n").encode()
    # dd reads no byte beyond the script, so that what follows it is the script's own input.
    opening = f's=$(dd bs=1 count={len(whole)} 2>/dev/null); eval "$s"\n'.encode()
    child = await asyncio.create_subprocess_exec(
        *ssh_command(host),
        REMOTE_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        feeding = asyncio.ensure_future(_feed(child.stdin, opening + whole, attachment))
        complaining = asyncio.ensure_future(child.stderr.read())
        last = await asyncio.wait_for(_listen(child.stdout, nonce, say), timeout_s)
        words = (await complaining).decode(errors="replace")
        await feeding
        code = await child.wait()
    except asyncio.TimeoutError:
        raise RefusedError(f"{host.name}: not done after {timeout_s:.0f} s", fix="try again") from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    if last is None:
        raise explain(words, code, host)
    if last != "done":
        reason = last.removeprefix("failed ") if last.startswith("failed ") else f"it ended after: {last}"
        said = "".join(f"\n    {line}" for line in words.strip().splitlines()[-8:])
        raise RefusedError(f"{host.name}: {reason}{said}")


async def on_each(hosts: Sequence[Host], work: Callable[[Host, Say], Awaitable[None]], say: Say) -> ExitCode:
    """Do ``work`` on all ``hosts`` at once, but not on this machine; RUN_FAILED where it failed on one.

    A host's trouble is said under its name and leaves the others alone.
    """
    here = await asyncio.to_thread(on_this_machine, hosts)

    async def one(host: Host) -> bool:
        if host.name in here:
            say(f"{host.name}: is this machine, where mlrun runs from its own environment")
            return True
        try:
            await work(host, lambda text: say(f"{host.name}: {text}"))
        except MlrunError as error:
            say(str(error))
            return False
        return True

    done = await asyncio.gather(*(one(host) for host in hosts))
    return ExitCode.DONE if all(done) else ExitCode.RUN_FAILED


async def _feed(stdin: asyncio.StreamWriter, script: bytes, attachment: Path | None) -> None:
    # A far end that has stopped reading says why by itself.
    with suppress(ConnectionError):
        stdin.write(script)
        if attachment is not None:
            with attachment.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    stdin.write(chunk)
                    await stdin.drain()
        await stdin.drain()
        stdin.close()


async def _listen(stdout: asyncio.StreamReader, nonce: str, say: Say) -> str | None:
    """Pass on what the script says; its last word, or None where it never began."""
    last = None
    async for line in stdout:
        text = line.decode(errors="replace").rstrip("\r\n")
        if text.startswith(nonce):
            last = text[len(nonce) + 1 :]
            if last != "done" and not last.startswith("failed "):
                say(last)
    return last
