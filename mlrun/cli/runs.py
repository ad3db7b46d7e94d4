"""Commands on runs that have begun: list, show, follow, end and remove them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mlrun.cli.options import ConsoleKind, Hostfile, HostList, RunName, RunsDir

if TYPE_CHECKING:
    from mlrun.hosts import Host

STOP_TIMEOUT_S = 120.0
"""How long ``stop`` waits for a run to finish its step, save and end."""


def register(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    group = typer.Typer(no_args_is_help=True, help="List, show, compare and remove recorded runs.")
    group.command(epilog="Example: mlrun runs ls")(ls)
    group.command(epilog="Example: mlrun runs show last")(show)
    group.command(epilog="Example: mlrun runs compare 3fa2b1 last")(compare)
    group.command(epilog="Example: mlrun runs rm digits-20261201")(rm)
    app.add_typer(group, name="runs")
    app.command(epilog="Example: mlrun ps")(ps)
    app.command(epilog="Example: mlrun attach last")(attach)
    app.command(epilog="Example: mlrun stop last")(stop)
    app.command(epilog="Example: mlrun logs last --rank 2 -f")(logs)
    app.command(epilog="Example: mlrun replay last --speed 10")(replay)
    app.command(epilog="Example: mlrun report last")(report)
    app.command(epilog="Example: mlrun export last --format hf")(export)


def ls(
    everywhere: Annotated[bool, typer.Option("--all", "-a", help="Runs of other folders too.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """List the runs of this folder, or of all where it has none; the newest first."""
    from mlrun import index
    from mlrun.report import past

    folders = past.listed(runs_dir, everywhere=everywhere)
    if not folders and not index.elsewhere():
        typer.echo("no runs yet; start one with: mlrun launch SPEC")
        return
    if folders:
        past.print_table(folders)
    for entry in index.elsewhere():
        typer.echo(f"{index.short_id(entry.folder)}  {entry.folder.name}  lives on {entry.name}")


def show(run: RunName, runs_dir: RunsDir = Path("runs")) -> None:
    """Tell how one run went and where it is."""
    from rich.console import Console

    from mlrun import index, runs
    from mlrun.console.model import Run
    from mlrun.console.result import result
    from mlrun.report import past

    _where_it_lives(runs_dir, run, "runs", "show")
    folder = index.find(runs_dir, run)
    told = Run()
    for event in runs.read_events(folder):
        told.apply(event)
    entry = index.entry_of(folder)
    alive = entry is not None and entry.launcher is not None
    typer.echo(f"{index.short_id(folder)}  {folder}  {past.status_of(folder, alive)}")
    terminal = Console(highlight=False, soft_wrap=True)
    for line in result(told):
        terminal.print(line)


def compare(
    one: Annotated[str, typer.Argument(metavar="RUN")],
    other: Annotated[str, typer.Argument(metavar="RUN")],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Put two runs beside each other: figures, and where their specs differ."""
    from rich.console import Console

    from mlrun import index
    from mlrun.report import past

    Console(highlight=False).print(past.compared(index.find(runs_dir, one), index.find(runs_dir, other)))


def rm(
    run: Annotated[list[str], typer.Argument(metavar="RUN...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Remove runs with their logs and checkpoints."""
    import shutil

    from mlrun import index
    from mlrun.errors import RefusedError

    folders = list(dict.fromkeys(index.find(runs_dir, each, alone=True) for each in run))
    for folder in folders:
        entry = index.entry_of(folder)
        if entry is not None and entry.launcher is not None:
            raise RefusedError(f"{folder.name} is running", fix=f"mlrun stop {folder.name}")
    if not yes:
        typer.confirm(f"Remove {', '.join(folder.name for folder in folders)}?", abort=True)
    for folder in folders:
        shutil.rmtree(folder)
        index.forget(folder)
        typer.echo(f"removed {folder}")


def ps(listed: HostList = None, hostfile: Hostfile = None) -> None:
    """List the runs that are alive on this machine, or on others."""
    from mlrun import index
    from mlrun.hosts import chosen_hosts
    from mlrun.report import past

    if listed is not None or hostfile is not None:
        raise typer.Exit(_ps_on(chosen_hosts(listed, hostfile)))
    alive = [entry.folder for entry in index.entries() if entry.launcher is not None]
    if not alive:
        typer.echo("no run is alive on this machine")
        return
    past.print_table(alive)


def _ps_on(hosts: list[Host]) -> int:
    """What ``ps`` says on each of ``hosts``; 1 where one of them can't be asked."""
    import asyncio

    from mlrun.errors import MlrunError
    from mlrun.launch.elsewhere import carry_out

    async def ask(host: Host) -> int:
        told: list[str] = []

        def hear(line: str) -> bool:
            told.append(f"{host.name}: {line}")
            return True

        try:
            code = await carry_out(host, ["ps"], hear)
        except MlrunError as error:
            told, code = [str(error)], 1
        for line in told:
            typer.echo(line)
        return code

    async def ask_all() -> list[int]:
        return await asyncio.gather(*map(ask, hosts))

    return 1 if any(asyncio.run(ask_all())) else 0


def attach(run: RunName, console: ConsoleKind = "live", runs_dir: RunsDir = Path("runs")) -> None:
    """Show a run that is going on, here or where it was detached to. Ctrl-C leaves it alone."""
    from mlrun import index
    from mlrun.launch.elsewhere import attach as watch

    found = index.find_elsewhere(runs_dir, run) or index.find(runs_dir, run)
    try:
        raise typer.Exit(watch(found, console=console))
    except KeyboardInterrupt:
        typer.echo(f"the run goes on: mlrun attach {run}", err=True)


def _where_it_lives(runs_dir: Path, run: str, *command: str) -> None:
    """Where the run lives on another machine, the command is done there, and this one ends as that did."""
    from mlrun import index

    away = index.find_elsewhere(runs_dir, run)
    if away is not None:
        from mlrun.launch.elsewhere import pass_on

        raise typer.Exit(pass_on(away, *command, away.run_dir))


def stop(
    run: RunName,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """End a run in good order: it finishes its step and saves. Told twice, it ends at once."""
    import signal
    import time

    from mlrun import index
    from mlrun.errors import RequestError, RunFailedError
    from mlrun.runs import LOOK_S

    _where_it_lives(runs_dir, run, "stop")
    alive = [entry.folder for entry in index.entries() if entry.launcher is not None]
    folder = alive[0] if run == "last" and alive else index.find(runs_dir, run)
    entry = index.entry_of(folder)
    launcher = entry.launcher if entry is not None else None
    if launcher is None:
        raise RequestError(f"{folder.name} isn't running on this machine", fix="mlrun ps lists what is")
    launcher.send_signal(signal.SIGTERM)
    typer.echo(f"{folder.name}: finishing the step and saving")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while entry is not None and entry.launcher is not None:
        if time.monotonic() > deadline:
            raise RunFailedError(
                f"{folder.name} still runs after {STOP_TIMEOUT_S:g} s", fix=f"mlrun stop {folder.name} again"
            )
        time.sleep(LOOK_S)
    typer.echo(f"{folder.name} has ended")


def logs(
    run: RunName,
    rank: Annotated[int | None, typer.Option(metavar="K", help="This rank's whole log alone.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Print what a run's workers printed."""
    from mlrun import index
    from mlrun.report import past

    options = [*([] if rank is None else ["--rank", str(rank)]), *(["-f"] if follow else [])]
    _where_it_lives(runs_dir, run, "logs", *options)
    folder = index.find(runs_dir, run)
    entry = index.entry_of(folder)

    def going_on() -> bool:
        return follow and entry is not None and entry.launcher is not None

    for line in past.log_lines(folder, rank, going_on):
        typer.echo(line)


def replay(
    run: RunName,
    speed: Annotated[float, typer.Option(min=0.1, help="How many times as fast as it was.")] = 1.0,
    console: ConsoleKind = "live",
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show a recorded run on the live screen again."""
    from mlrun import index
    from mlrun.console.replay import replay as play

    play(index.find(runs_dir, run), speed=speed, console=console)


def report(
    run: RunName,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a run's charts as one HTML page and one picture into its folder."""
    from mlrun import index
    from mlrun.report.page import write_report

    for path in write_report(index.find(runs_dir, run)):
        typer.echo(f"wrote {path}")


def export(
    run: RunName,
    kind: Annotated[
        Literal["safetensors", "hf", "keras"],
        typer.Option(
            "--format",
            help="hf: a folder that from_pretrained of transformers reads. keras: a file that Keras loads.",
        ),
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to; by default export-FORMAT in the run's folder.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write the model of a run's last checkpoint as others read it, and say how it is loaded."""
    import importlib

    from mlrun import index, runs, specfile
    from mlrun.errors import RefusedError, RequestError

    folder = index.find(runs_dir, run)
    checkpoint = runs.latest_checkpoint(folder)
    if checkpoint is None:
        raise RequestError(f"{folder} has no checkpoint", fix="name another run")
    spec = specfile.load(folder / runs.SPEC_FILE)
    if spec.framework == "sim":
        raise RequestError("a simulated run has no model to export")
    try:
        written = importlib.import_module(f"mlrun.backends.{spec.framework}.export")
    except ImportError as error:
        raise RefusedError(
            f"export needs {error.name}, which isn't installed here",
            fix=f"pip install 'mlrun-ring[{spec.framework}]'",
        ) from error
    if kind not in written.WRITERS:
        raise RequestError(
            f"--format {kind} isn't for runs of {spec.framework}",
            fix=f"take one of {', '.join(written.WRITERS)}",
        )

    out = (out or folder / f"export-{kind}").expanduser().resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"--out: can't make {out}: {error.strerror}", fix="name another folder") from error
    written.WRITERS[kind](spec, checkpoint, out)
    typer.echo(f"wrote {out}; load it with")
    for line in written.loading_lines(out, kind):
        typer.echo(f"  {line}")
