"""Agents on other machines, over the system's own ssh: people's config, keys and jump hosts just work.

The login shell at the far end may be anything. It is given one command that every shell reads alike; that
starts ``/bin/sh``, which reads one line of script from the pipe, finds a Python that has mlrun, prints a
start line and becomes the agent. What a banner or a profile prints before the start line is set aside.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mlrun.agent.command import RUN_VARIABLE
from mlrun.errors import MlrunError, RefusedError
from mlrun.hosts import Host
from mlrun.launch.ssh_failures import explain
from mlrun.launch.transport import ChildTransport

HOSTS_VENV = "~/.local/share/mlrun/venv"
"""The environment that ``mlrun hosts install`` makes on a host."""

CONNECT_TIMEOUT_S = 10
START_TIMEOUT_S = 60.0
"""From the first dial to the start line: a connection, a log-in and a slow profile."""
REAP_TIMEOUT_S = 30.0

# Between its single quotes is no quote, backslash, newline or exclamation mark: there sh, zsh, fish and csh
# differ. `read` takes no byte beyond the line, so the agent finds its first message next in the pipe.
REMOTE_COMMAND = """exec /bin/sh -c 'IFS= read -r s && eval "$s"'"""

_FITS = (
    "import sys,importlib.util as u;"
    "s=[u.find_spec(m) for m in ('mlrun','psutil')];"
    "sys.exit(sys.version_info<(3,10) or not all(x and x.origin for x in s))"
)
_DESCRIBE = (
    "import sys,importlib.util as u;"
    "s=[m for m in ('mlrun','psutil') if not getattr(u.find_spec(m),'origin',None)];"
    "print('Python %d.%d.%d'%sys.version_info[:3], 'without '+' and '.join(s) if s else 'with mlrun')"
)
# Where people's Pythons are on a Mac; not /usr/bin/python3, which may be a stub that opens a dialogue.
_USUAL_PLACES = (
    "/opt/homebrew/bin/python3",
    "/usr/local/bin/python3",
    "~/.local/bin/python3",
    "~/.pyenv/shims/python3",
    "~/miniforge3/bin/python3",
    "~/miniconda3/bin/python3",
)


class NoInterpreterError(RefusedError):
    """The host was reached, but no Python there has mlrun."""


def ssh_command(host: Host) -> list[str]:
    """The command that runs one remote command on ``host``, which is to be appended as one argument.

    Nothing may ask, share a connection with another ssh, or forward anything; a dead peer is noticed in 15 s.
    """
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        # Its failures are explained from its own words, so it mustn't be told to keep silent.
        "LogLevel": "INFO",
    }
    command = ["ssh", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    if host.user is not None:
        command += ["-l", host.user]
    return [*command, "--", host.destination]


def interpreters(host: Host, workdir: str, launcher_python: str, launcher_home: str) -> list[str]:
    """Where to look for a Python with mlrun on ``host``, first choice first; a leading ``~`` is its home."""
    if host.python is not None:
        return [host.python]
    return [
        f"{HOSTS_VENV}/bin/python",
        f"{workdir}/.venv/bin/python",
        swap_home(launcher_python, launcher_home),
    ]


def swap_home(path: str, home: str) -> str:
    """``path`` with the launcher's home folder written as ``~``, to mean the other machine's."""
    home = home.rstrip("/")
    return f"~{path[len(home) :]}" if home and (path == home or path.startswith(home + "/")) else path


def bootstrap(
    program: Sequence[str], pythons: Sequence[str], workdir: str, nonce: str, mark: str | None = None
) -> bytes:
    """One line of POSIX sh: become ``python -m PROGRAM`` in ``workdir``, or print what Pythons there are.

    The line ``NONCE start`` comes before the program's first byte; ``NONCE none`` before the list. ``mark``
    is the run whose process it is (see ``mlrun.agent.reap``).
    """
    export = f"export {RUN_VARIABLE}={shlex.quote(mark)}; " if mark is not None else ""
    candidates = " ".join(map(shell_path, pythons))
    others = " ".join(map(shell_path, _USUAL_PLACES))
    fits, describe = shlex.quote(_FITS), shlex.quote(_DESCRIBE)
    script = (
        f'for p in {candidates}; do if [ -x "$p" ] && "$p" -c {fits} </dev/null >/dev/null 2>&1; then '
        f"cd {shell_path(workdir)} 2>/dev/null; {export}printf '\\n%s\\n' '{nonce} start'; "
        f'exec "$p" -m {shlex.join(program)}; fi; done; '
        f"printf '\\n%s\\n' '{nonce} none'; "
        f'for p in {candidates}; do [ -e "$p" ] || echo "$p: not there"; done; '
        f'for p in {candidates} {others}; do if [ -x "$p" ]; then '
        f'echo "$p: $("$p" -c {describe} </dev/null 2>&1 | tail -n 1)"; fi; done; exit 127'
    )
    return script.encode() + b"\n"


def shell_path(path: str) -> str:
    """``path`` as one word of sh; one that begins with ``~/`` is in the home folder there."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:])}' if len(path) > 1 else '"$HOME"'
    return shlex.quote(path)


class SshTransport(ChildTransport):
    """An agent on another machine. ``workdir`` is the run's folder as the launcher knows it.

    The agent bears the mark of ``run_id``, so that a stopped one can be ended too.
    """

    program: Sequence[str] = ("mlrun.agent",)
    """The module that is run there, and its arguments."""

    def __init__(self, host: Host, workdir: str, run_id: str | None = None) -> None:
        super().__init__(host.name)
        self._run_id = run_id
        self._target = host
        home = str(Path.home())
        self._workdir = host.workdir or swap_home(workdir, home)
        self._pythons = interpreters(host, self._workdir, sys.executable, home)

    async def start(self) -> None:
        """Connect, log in and start the agent.

        Raises:
            RefusedError: with ssh's own words, the likely reason and the fix.
            RunFailedError: there is no ssh on this machine.
        """
        nonce = f"mlrun-{secrets.token_hex(8)}"
        await self._spawn([*ssh_command(self._target), REMOTE_COMMAND])
        self._in.write(bootstrap(self.program, self._pythons, self._workdir, nonce, self._run_id))
        try:
            await asyncio.wait_for(self._await_start(nonce.encode()), START_TIMEOUT_S)
        except asyncio.TimeoutError:
            await self.close(timeout_s=0)
            raise RefusedError(
                f"{self.host}: its login shell gave no answer within {START_TIMEOUT_S:.0f} s.",
                fix=f"Try `ssh {self._target.destination} true`: a profile must not wait for input there",
            ) from None
        except MlrunError:
            await self.close(timeout_s=1)
            raise

    async def reap(self, run_id: str) -> None:
        """Over a second ssh. A host that can't be reached ends the run itself, at the end of the lease."""
        child = await asyncio.create_subprocess_exec(
            *ssh_command(self._target),
            REMOTE_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        script = bootstrap(["mlrun.agent.reap", run_id], self._pythons, self._workdir, "reap")
        try:
            await asyncio.wait_for(child.communicate(script), REAP_TIMEOUT_S)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _await_start(self, nonce: bytes) -> None:
        """Read up to the start line; what comes before it is the shell's chatter."""
        async for line in self._out:
            if line.rstrip() == nonce + b" start":
                return
            if line.rstrip() == nonce + b" none":
                found = (await self._out.read()).decode(errors="replace").split("\n")
                raise _no_interpreter(self._target, [place for place in found if place])
        ended = await self.last_words()
        code = self._child.returncode if self._child is not None else None
        raise explain("\n".join(self._words) or ended, code, self._target)


def _no_interpreter(host: Host, found: list[str]) -> NoInterpreterError:
    places = "\n".join(f"    {place}" for place in dict.fromkeys(found))
    usable = next((line.rpartition(": ")[0] for line in found if line.endswith("with mlrun")), None)
    fix = (
        f"Set python: {usable} for this host in the hosts: of the spec or in the hostfile"
        if usable
        else "Install mlrun there: mlrun hosts install"
    )
    return NoInterpreterError(f"{host.name}: no Python with mlrun. Looked at:\n{places}", fix=fix)
