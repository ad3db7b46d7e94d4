"""Commands that start workers or look at hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlrun.cli.options import (
    ConsoleKind,
    Hostfile,
    HostList,
    LogRanks,
    Overrides,
    RunName,
    RunsDir,
    Workers,
    ranks_of,
)

if TYPE_CHECKING:
    from mlrun.spec import JobSpec


def register(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    example = "Example: mlrun launch digits.yaml -np 2, or: mlrun launch train.py -np 2 -- --epochs 3"
    app.command(epilog=example)(launch)
    app.command(epilog="Example: mlrun resume last --set epochs=20")(resume)
    app.command(epilog="Example: mlrun top --hosts mac1,mac2,mac3")(top)
    app.command(epilog="Example: mlrun doctor --hosts mac1,mac2")(doctor)


def launch(
    spec: Annotated[
        str | None, typer.Argument(metavar="SPEC|SCRIPT.py", help="The job spec, a YAML file, or a script.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's own arguments.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module as python -m does.")
    ] = None,
    horovod: Annotated[
        bool, typer.Option("--horovod", help="import horovod in the script finds a stand-in over the ring.")
    ] = False,
    independent: Annotated[
        bool, typer.Option("--independent", help="The script's workers may train separate models.")
    ] = False,
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
    max_restarts: Annotated[
        int | None, typer.Option(metavar="N", help="Start a failed run again: --set restarts=...")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few steps on tiny shapes on this machine, then checks.")
    ] = False,
    console: ConsoleKind = "live",
    log_ranks: LogRanks = None,
    runs_dir: RunsDir = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would start, and start nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Let the launcher live on the first host, without this machine.")
    ] = False,
) -> None:
    """Train the model of a spec, or run a training script of one's own on every worker."""
    from mlrun import github, specfile
    from mlrun.cli import scripts
    from mlrun.errors import RequestError

    short = [("allreduce.engine", engine), ("device", device), ("restarts", max_restarts)]
    if interface:
        short.append(("network.interfaces", json.dumps(interface)))
    all_overrides = [*(overrides or []), *(f"{key}={value}" for key, value in short if value is not None)]
    script = scripts.of_command(spec, module, arguments or [], horovod=horovod, independent=independent)
    with github.annotated(str(spec), active=smoke):
        if script is not None:
            job = specfile.of_script(script, all_overrides)
        else:
            job = specfile.load(str(spec), all_overrides, smoke=smoke)
        if job.run is not None and smoke:
            raise RequestError("--smoke is for models, not for scripts", fix="leave --smoke out")
        job = _on_hosts(job, hosts, hostfile)
        if dry_run:
            _show_plan(job, np, smoke)
            return
        if detach and smoke:
            raise RequestError("--smoke runs on this machine and ends soon", fix="leave --detach out")
        if detach:
            raise typer.Exit(_detach(job, np, runs_dir, console))
        from mlrun.launch import launcher

        result = launcher.launch(
            job, np=np, console=console, log_ranks=ranks_of(log_ranks), runs_dir=runs_dir, smoke=smoke
        )
    if smoke:
        github.annotate_failure(str(spec), result.summary)
    raise typer.Exit(result.exit_code)


def _detach(job: JobSpec, np: int | None, runs_dir: Path, console: str) -> int:
    """Start the launcher where it will live, and look on until the run trains."""
    from mlrun.launch.detach import detach
    from mlrun.launch.elsewhere import attach

    run = detach(job, np=np, runs_dir=runs_dir)
    code = attach(run, console="plain" if console == "live" else console, until_it_trains=True)
    if code == 0:
        away = None if isinstance(run, Path) else f"lives on {run.name}, in {run.run_dir}"
        name = run.name if isinstance(run, Path) else run.folder.name
        typer.echo(f"{name} {away or 'goes on by itself'}: mlrun attach, logs and stop reach it", err=True)
    return code


def _on_hosts(job: JobSpec, listed: str | None, hostfile: Path | None) -> JobSpec:
    from mlrun.hosts import chosen_hosts, spec_entry

    hosts = chosen_hosts(listed, hostfile)
    return job.model_copy(update={"hosts": [spec_entry(host) for host in hosts]}) if hosts else job


def _show_plan(job: JobSpec, np: int | None, smoke: bool) -> None:
    from mlrun import runs
    from mlrun.launch import resolve

    plan = resolve.resolve(job, np, smoke=smoke)
    typer.echo(runs.spec_text(plan.spec), nl=False)
    for worker in plan.assignments:
        share = f": {plan.shares[worker.rank]} samples per step" if job.run is None else ""
        typer.echo(f"# rank {worker.rank} on {worker.host}{share}")
    batch = f", global batch {sum(plan.shares)}" if job.run is None else ""
    typer.echo(f"# {plan.world_size} worker(s){batch}; nothing was started")
    for note in plan.notes:
        typer.echo(f"# {note}")


def resume(
    run: RunName,
    np: Workers = None,
    hosts: HostList = None,
    hostfile: Hostfile = None,
    overrides: Overrides = None,
    console: ConsoleKind = "live",
    log_ranks: LogRanks = None,
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
        log_ranks=ranks_of(log_ranks),
        runs_dir=runs_dir,
    )
    raise typer.Exit(result.exit_code)


def top(hosts: HostList = None, hostfile: Hostfile = None, console: ConsoleKind = "live") -> None:
    """Watch what hosts do, without a run: GPU, memory, power, thermal state. Ctrl-C ends it."""
    from mlrun.hosts import Host, chosen_hosts
    from mlrun.launch.top import top as watch

    watch(chosen_hosts(hosts, hostfile) or [Host("localhost")], console=console)


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

        raise typer.Exit(examine_device(framework, typer.echo))
    from mlrun.doctor import command
    from mlrun.hosts import chosen_hosts

    raise typer.Exit(command.examine(chosen_hosts(hosts, hostfile), framework, typer.echo))
