"""Runs that live on other machines: looked at, and told what to do, from here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from mlrun import index, runs
from mlrun.console import Console, open_console
from mlrun.errors import ExitCode, RequestError, RunFailedError
from mlrun.hosts import Host
from mlrun.launch.ssh import SshTransport
from mlrun.protocol import Event, StepEvent, SummaryEvent
from mlrun.wire import ProtocolError, decode


def attach(run: Path | index.Elsewhere, *, console: str, until_it_trains: bool = False) -> ExitCode:
    """Show a run, wherever it lives, until it ends; its exit code then.

    ``until_it_trains``: return at its first step.

    Raises:
        RequestError: it has recorded nothing, or no such console.
        RefusedError: its machine can't be reached.
        RunFailedError: nothing more comes, though the run has not told how it ended.
    """
    with open_console(console) as view:
        watcher = _Watcher(view, until_it_trains=until_it_trains)
        if isinstance(run, index.Elsewhere):
            command = ["attach", run.run_dir, "--console", "json"]
            asyncio.run(carry_out(run.host, command, watcher.hear))
        else:
            _follow(run, watcher)
    if watcher.exit_code is not None:
        return watcher.exit_code
    if isinstance(run, index.Elsewhere):
        raise RunFailedError(f"the connection to {run.name} broke", fix=f"mlrun attach {run.folder.name}")
    raise RunFailedError(f"the launcher of {run.name} was killed", fix=f"mlrun resume {run.name}")


def pass_on(run: index.Elsewhere, *command: str) -> int:
    """``mlrun COMMAND`` where ``run`` lives, as if it were done here; its exit code.

    Raises:
        RefusedError: that machine can't be reached.
    """
    return asyncio.run(carry_out(run.host, command, _print))


async def carry_out(host: Host, command: Sequence[str], hear: Callable[[str], bool]) -> int:
    """Run ``mlrun COMMAND`` on ``host``; its exit code. ``hear`` gets each line, and says whether to go on.

    Raises:
        RefusedError: the host can't be reached, or has no mlrun.
    """
    line = _Command(host, "~")
    line.program = ("mlrun.cli", *command)
    await line.start()
    try:
        return await line.listen(hear)
    finally:
        await line.close(0)


class _Watcher:
    """Shows events, and remembers how the run ended."""

    def __init__(self, view: Console, *, until_it_trains: bool) -> None:
        self._view = view
        self._until_it_trains = until_it_trains
        self.exit_code: ExitCode | None = None

    def hear(self, line: str) -> bool:
        with suppress(ProtocolError):
            event = decode(line)
            if isinstance(event, Event):
                self._view.show(event)
            if isinstance(event, SummaryEvent):
                self.exit_code = ExitCode(event.summary["exit_code"])
                return False
            if isinstance(event, StepEvent) and self._until_it_trains:
                self.exit_code = ExitCode.DONE
                return False
        return True


class _Command(SshTransport):
    """An ssh that runs one command to its end."""

    async def listen(self, hear: Callable[[str], bool]) -> int:
        async for line in self._out:
            if not hear(line.decode(errors="replace").rstrip("\n")):
                return ExitCode.DONE
        code = await self.exit_code()
        for word in self._words:
            print(word, file=sys.stderr)
        return ExitCode.RUN_FAILED if code is None else code


def _follow(run_dir: Path, watcher: _Watcher) -> None:
    entry = index.entry_of(run_dir)
    if not (run_dir / runs.EVENTS_FILE).is_file():
        raise RequestError(f"{run_dir.name} has recorded nothing", fix="name another run")
    lines = runs.follow(run_dir / runs.EVENTS_FILE, lambda: entry is not None and entry.launcher is not None)
    for line in lines:
        if not watcher.hear(line):
            return


def _print(line: str) -> bool:
    print(line, flush=True)
    return True
