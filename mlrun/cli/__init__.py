"""The ``mlrun`` command: parse, call, render. A file for each family of commands.

What takes long to import is imported by the command that needs it, so that ``--help`` comes at once.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from mlrun import __version__
from mlrun.cli import bench, check, hosts, jobs, runs, scale, specs
from mlrun.errors import ExitCode, MlrunError, RefusedError

app = typer.Typer(
    name="mlrun",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> NoReturn:
    """The entry point: errors for people become a message on stderr and an exit code."""
    _open_closed_streams()
    try:
        _refuse_the_other_mlrun()
        app()
    except MlrunError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        typer.echo(_unexpected(error), err=True)
        sys.exit(ExitCode.RUN_FAILED)
    sys.exit(ExitCode.DONE)


def _open_closed_streams() -> None:
    """Started with a standard stream closed (``>&-``), the next file opened would become that stream."""
    for name, mode, descriptor in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115 (lasts as long as we do)


def _refuse_the_other_mlrun() -> None:
    """PyPI's ``mlrun`` is another project whose command and package have this one's name."""
    try:
        version = metadata.version("mlrun")
    except metadata.PackageNotFoundError:
        return
    raise RefusedError(
        f"the unrelated package mlrun {version} is installed in this environment, over files of this one",
        fix="pip uninstall mlrun, then pip install --force-reinstall mlrun-ring",
    )


def _unexpected(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="mlrun-", suffix=".traceback", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"mlrun failed where it shouldn't: {type(error).__name__}: {first} (traceback in {file.name})"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mlrun {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: mlrun launch digits.yaml -np 2")
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """One command trains one model on all the Macs in the room."""


jobs.register(app)
hosts.register(app)
runs.register(app)
scale.register(app)
specs.register(app)
check.register(app)
bench.register(app)
