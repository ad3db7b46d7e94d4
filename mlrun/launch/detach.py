"""``--detach``: the launcher moves to the first host, with the code, and lives on there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from mlrun import index
from mlrun.errors import ExitCode, MlrunError, RefusedError, RequestError, RunFailedError
from mlrun.hosts import Host
from mlrun.launch import ship
from mlrun.launch.detached import PROGRAM, Answer, Request
from mlrun.launch.here import on_this_machine
from mlrun.launch.resolve import Resolved, resolve
from mlrun.launch.ssh import SshTransport
from mlrun.spec import JobSpec

RUNS = "~/.local/share/mlrun/detached"
"""Where the run folders are on a host: this is their home, so ``hosts clean`` leaves them alone."""
ANSWER_TIMEOUT_S = 60.0


def detach(spec: JobSpec, *, np: int | None, runs_dir: Path) -> index.Elsewhere | Path:
    """Launch ``spec`` on its first host; returns once its run folder is there, and says where.

    Raises:
        RequestError, RefusedError: nothing was started.
        RunFailedError: the launcher there ended without a word.
    """
    resolved = resolve(spec, np)
    first = resolved.hosts[0]
    if first.name in on_this_machine([first]):
        return Path(_folder_in(_start_here(_request(resolved, str(runs_dir.resolve()))), first))
    for host in resolved.hosts:
        if host.is_local:
            raise RequestError(
                f"{host.name} would mean {first.name} itself to a launcher there",
                fix="write this machine's name as the others know it",
            )
    run_dir = _folder_in(asyncio.run(_start_there(resolved, first)), first)
    return index.note_elsewhere(run_dir, first)


def _request(resolved: Resolved, runs_dir: str) -> Request:
    passed_on = [name for name, value in resolved.spec.env.items() if value is None]
    passed_on += [name for host in resolved.hosts for name, value in host.env.items() if value is None]
    env = {name: os.environ[name] for name in passed_on if name in os.environ}
    return Request(resolved.spec.model_dump(mode="json"), runs_dir, env)


def _start_here(request: Request) -> str:
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        input=request.to_line(),
        stdout=subprocess.PIPE,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    return done.stdout.decode()


async def _start_there(resolved: Resolved, host: Host) -> str:
    """Bring the code there and start the launcher in it; its answer."""
    workdir = Path(str(resolved.spec.workdir))
    code = await asyncio.to_thread(ship.manifest, workdir, resolved.spec.ship)
    if host.workdir is not None:
        await ship.compare(workdir, code, host, host.workdir)
        there = host.workdir
    else:
        there = await ship.ship(workdir, code, host)
    request = _request(resolved, RUNS)
    request.spec["workdir"] = there
    line = _Line(host, there)
    line.program = (PROGRAM,)
    await line.start()
    try:
        return await line.ask(request)
    finally:
        await line.close(timeout_s=5)


class _Line(SshTransport):
    """An ssh that lasts until the launcher there has answered."""

    async def ask(self, request: Request) -> str:
        self.write(request.to_line())
        try:
            answer = await asyncio.wait_for(self._out.readline(), ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise RunFailedError(f"{self.host}: no answer within {ANSWER_TIMEOUT_S:g} s") from None
        if not answer:
            raise RefusedError(
                f"{self.host}: the launcher can't be started there: {await self.last_words()}",
                fix=f"mlrun hosts install --hosts {self.host}",
            )
        return answer.decode()


def _folder_in(line: str, host: Host) -> str:
    try:
        answer = Answer.from_line(line)
    except (ValueError, TypeError):
        raise RunFailedError(f"{host.name}: the launcher ended without a word: {line[:200]!r}") from None
    if answer.run_dir is None:
        error = MlrunError(answer.error)
        error.exit_code = ExitCode(answer.exit_code)
        raise error
    return answer.run_dir
