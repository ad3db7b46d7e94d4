"""Commands on job specs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.command(epilog="Example: mlrun validate configs/*.yaml")(validate)
    app.command(epilog="Example: mlrun schema > spec.schema.json")(schema)
    app.command(epilog="Example: mlrun init digits && mlrun launch digits.yaml -np 2")(init)


def validate(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC|SCRIPT.py", help="Job specs, or scripts.")],
) -> None:
    """Check specs, without a network, a GPU or data. Every mistake of every file is told at once.

    Scripts are read as by mlrun check.
    """
    from mlrun import specfile
    from mlrun.cli.check import report
    from mlrun.errors import ExitCode

    mistakes = []
    scripts = [Path(spec) for spec in specs if spec.endswith(".py")]
    found = report(scripts) if scripts else ExitCode.DONE
    for spec in specs:
        if Path(spec) in scripts:
            continue
        try:
            job = specfile.load(spec)
        except specfile.SpecError as error:
            mistakes += error.mistakes
        else:
            typer.echo(f"{spec}: OK ({job.name})")
    if mistakes:
        raise specfile.SpecError(mistakes)
    raise typer.Exit(found)


def schema() -> None:
    """Print the JSON schema of a spec, for editors that complete and check as you type."""
    from mlrun import specfile

    typer.echo(specfile.schema_text(), nl=False)


def init(
    kind: Annotated[
        str, typer.Argument(metavar="[digits|resnet50|script]", help="What to start from.")
    ] = "digits",
    path: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="KIND.yaml when not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented spec to start from."""
    from mlrun import starters

    target = path or Path(f"{kind}.yaml")
    written = starters.write(kind, target, force=force)
    names = " and ".join(map(str, written))
    typer.echo(f"wrote {names}; train it with: mlrun launch {target} -np 2")
