"""``mlrun check``: read scripts, render what was found."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from mlrun.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog="Example: mlrun check train.py")(check)


def check(
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT.py", help="Training scripts.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> None:
    """Read scripts and list what breaks or slows training on several Macs; exit code 4 with findings."""
    raise typer.Exit(report(scripts, as_json=as_json))


def report(scripts: list[Path], *, as_json: bool = False) -> ExitCode:
    """Print all findings of ``scripts``.

    Raises:
        RequestError: a script can't be read.
    """
    from mlrun.check.script import check as read

    findings = [finding for script in scripts for finding in read(script)]
    for finding in findings:
        typer.echo(json.dumps(dataclasses.asdict(finding)) if as_json else str(finding))
    if not findings and not as_json:
        typer.echo(f"{', '.join(map(str, scripts))}: nothing found")
    return ExitCode.THRESHOLD_MISSED if findings else ExitCode.DONE
