"""Commands on recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlrun.cli.options import ConsoleKind, RunName, RunsDir


def register(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.command(epilog="Example: mlrun replay last --speed 10")(replay)
    app.command(epilog="Example: mlrun report last")(report)


def replay(
    run: RunName,
    speed: Annotated[float, typer.Option(min=0.1, help="How many times as fast as it was.")] = 1.0,
    console: ConsoleKind = "live",
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show a recorded run on the live screen again."""
    from mlrun import runs
    from mlrun.console.replay import replay as play

    play(runs.find(runs_dir, run), speed=speed, console=console)


def report(
    run: RunName,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a run's charts as one HTML page and one picture into its folder."""
    from mlrun import runs
    from mlrun.report.page import write_report

    for path in write_report(runs.find(runs_dir, run)):
        typer.echo(f"wrote {path}")
