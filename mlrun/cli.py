"""The ``mlrun`` command: parse, call, render.

What takes long to import is imported by the command that needs it, so that ``--help`` comes at once.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mlrun import __version__
from mlrun.bench import command as bench
from mlrun.errors import ExitCode, MlrunError, RefusedError

if TYPE_CHECKING:
    from mlrun.spec import JobSpec

app = typer.Typer(
    name="mlrun",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in optimizer.lr=0.2. Repeatable."),
]
Workers = Annotated[int | None, typer.Option("-np", metavar="N", help="Workers in all.")]
HostList = Annotated[
    str | None, typer.Option("--hosts", "-H", metavar="LIST", help="Where to train: mac1,mac2:2,anna@mac3.")
]
Hostfile = Annotated[
    Path | None, typer.Option("--hostfile", metavar="FILE", help="Hosts in YAML, host slots=N or MLX's JSON.")
]
ConsoleKind = Annotated[
    str, typer.Option("--console", help="live, plain, json or off; live is plain where there is no terminal.")
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", metavar="DIR", help="Where the run folders are.")]


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


@app.command(epilog="Example: mlrun launch digits.yaml -np 2 --set optimizer.lr=0.2")
def launch(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The job spec, a YAML file.")],
    np: Workers = None,
    hosts: HostList = None,
    hostfile: Hostfile = None,
    overrides: Overrides = None,
    engine: Annotated[
        str | None, typer.Option(help="ring, gloo, mpi or horovod: --set allreduce.engine=...")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, mps or cuda: --set device=...")] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Interface (or address) that links may use. Repeatable."),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few steps on tiny shapes on this machine, then checks.")
    ] = False,
    console: ConsoleKind = "live",
    runs_dir: RunsDir = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would start, and start nothing.")
    ] = False,
) -> None:
    """Train the model of a spec."""
    from mlrun import github, specfile

    short = [("allreduce.engine", engine), ("device", device)]
    if interface:
        short.append(("network.interfaces", json.dumps(interface)))
    all_overrides = [*(overrides or []), *(f"{key}={value}" for key, value in short if value is not None)]
    with github.annotated(spec, active=smoke):
        job = _on_hosts(specfile.load(spec, all_overrides, smoke=smoke), hosts, hostfile)
        if dry_run:
            _show_plan(job, np, smoke)
            return
        from mlrun.launch import launcher

        result = launcher.launch(job, np=np, console=console, runs_dir=runs_dir, smoke=smoke)
    if smoke:
        github.annotate_failure(spec, result.summary)
    raise typer.Exit(result.exit_code)


def _on_hosts(job: JobSpec, listed: str | None, hostfile: Path | None) -> JobSpec:
    from mlrun.hosts import chosen_hosts, spec_entry

    hosts = chosen_hosts(listed, hostfile)
    return job.model_copy(update={"hosts": [spec_entry(host) for host in hosts]}) if hosts else job


def _show_plan(job: JobSpec, np: int | None, smoke: bool) -> None:
    from mlrun import runs
    from mlrun.launch import resolve
    from mlrun.spec import batch_shares

    plan = resolve.resolve(job, np, smoke=smoke)
    shares = batch_shares(plan.spec, plan.world_size)
    typer.echo(runs.spec_text(plan.spec), nl=False)
    for worker in plan.assignments:
        typer.echo(f"# rank {worker.rank} on {worker.host}: {shares[worker.rank]} samples per step")
    typer.echo(f"# {plan.world_size} worker(s), global batch {sum(shares)}; nothing was started")
    for note in plan.notes:
        typer.echo(f"# {note}")


@app.command(epilog="Example: mlrun resume last --set epochs=20")
def resume(
    run: Annotated[str, typer.Argument(metavar="RUN|last", help="A run's name, the start of one, or last.")],
    np: Workers = None,
    hosts: HostList = None,
    hostfile: Hostfile = None,
    overrides: Overrides = None,
    console: ConsoleKind = "live",
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Go on with a run from its last checkpoint, in the same folder."""
    from mlrun.hosts import chosen_hosts
    from mlrun.launch import launcher

    result = launcher.resume(
        run,
        overrides=overrides,
        np=np,
        hosts=chosen_hosts(hosts, hostfile),
        console=console,
        runs_dir=runs_dir,
    )
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: mlrun top --hosts mac1,mac2,mac3")
def top(hosts: HostList = None, hostfile: Hostfile = None, console: ConsoleKind = "live") -> None:
    """Watch what hosts do, without a run: GPU, memory, power, thermal state. Ctrl-C ends it."""
    from mlrun.hosts import Host, chosen_hosts
    from mlrun.launch.top import top as watch

    watch(chosen_hosts(hosts, hostfile) or [Host("localhost")], console=console)


@app.command(epilog="Example: mlrun replay last --speed 10")
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN|last", help="A run's name, the start of one, or last.")],
    speed: Annotated[float, typer.Option(min=0.1, help="How many times as fast as it was.")] = 1.0,
    console: ConsoleKind = "live",
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show a recorded run on the live screen again."""
    from mlrun import runs
    from mlrun.console.replay import replay as play

    play(runs.find(runs_dir, run), speed=speed, console=console)


@app.command(epilog="Example: mlrun report last")
def report(
    run: Annotated[str, typer.Argument(metavar="RUN|last", help="A run's name, the start of one, or last.")],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a run's charts as one HTML page and one picture into its folder."""
    from mlrun import runs
    from mlrun.report.page import write_report

    for path in write_report(runs.find(runs_dir, run)):
        typer.echo(f"wrote {path}")


@app.command(epilog="Example: mlrun validate configs/*.yaml")
def validate(specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Job specs.")]) -> None:
    """Check specs, without a network, a GPU or data. Every mistake of every file is told at once."""
    from mlrun import specfile

    mistakes = []
    for spec in specs:
        try:
            job = specfile.load(spec)
        except specfile.SpecError as error:
            mistakes += error.mistakes
        else:
            typer.echo(f"{spec}: OK ({job.name})")
    if mistakes:
        raise specfile.SpecError(mistakes)


@app.command(epilog="Example: mlrun schema > spec.schema.json")
def schema() -> None:
    """Print the JSON schema of a spec, for editors that complete and check as you type."""
    from mlrun import specfile

    typer.echo(specfile.schema_text(), nl=False)


@app.command(epilog="Example: mlrun doctor --hosts mac1,mac2")
def doctor(
    hosts: HostList = None,
    hostfile: Hostfile = None,
    framework: Annotated[str, typer.Option(help="torch, tensorflow or sim.")] = "torch",
    device_check: Annotated[
        bool, typer.Option("--device-check", help="Compare this machine's GPU with its CPU instead.")
    ] = False,
) -> None:
    """Look for what would keep a run from starting, rung by rung; exit code 4 where something would."""
    if device_check:
        from mlrun.doctor.device import examine_device

        raise typer.Exit(examine_device(typer.echo))
    from mlrun.doctor import command
    from mlrun.hosts import chosen_hosts

    raise typer.Exit(command.examine(chosen_hosts(hosts, hostfile), framework, typer.echo))


@app.command(epilog="Example: mlrun init digits && mlrun launch digits.yaml -np 2")
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


bench.register(app)

if __name__ == "__main__":
    main()
