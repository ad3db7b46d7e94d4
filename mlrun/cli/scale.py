"""The command that measures how training scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mlrun.cli.options import Hostfile, HostList, Overrides, Workers


def register(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command("scale-test", epilog="Example: mlrun scale-test --hosts mac1,mac2,mac3,mac4")(scale_test)


def scale_test(
    specs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SPEC]...", help="Job specs; each is a series of the chart."),
    ] = None,
    np: Workers = None,
    hosts: HostList = None,
    hostfile: Hostfile = None,
    overrides: Overrides = None,
    counts: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Numbers of workers, as in 2,4; one is measured in any case."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the spread needs two.")] = 1,
    fixed: Annotated[
        str, typer.Option(help="What stays as workers are added: batch (of each) or global (of all).")
    ] = "batch",
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="LIST", help="A series for each of these batch sizes.")
    ] = None,
    predict: Annotated[
        str | None, typer.Option(metavar="LIST", help="Also predict these numbers of workers, as in 8,16.")
    ] = None,
    min_efficiency: Annotated[
        float | None, typer.Option(metavar="X", help="Exit with 4 below this, as in 0.95.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where charts, tables and runs go.")] = Path(
        "scale-test"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print scale.json.")] = False,
) -> None:
    """Measure how training scales with the number of workers; without hosts, on four simulated Macs."""
    from mlrun.errors import RequestError
    from mlrun.hosts import chosen_hosts, spec_entry
    from mlrun.scaletest import plan, report
    from mlrun.scaletest.command import Request, scale_test
    from mlrun.specfile import load
    from mlrun.starters import folder

    if fixed not in ("batch", "global"):
        raise RequestError(
            f"--fixed {fixed}: no such way to scale", fix="say --fixed batch or --fixed global"
        )
    chosen = [spec_entry(host) for host in chosen_hosts(hosts, hostfile)]
    demo = not specs and not chosen
    default = folder() / ("sim-scale.yaml" if demo else "resnet.yaml")
    jobs = [load(path, overrides or []) for path in specs or [default]]
    if chosen:
        jobs = [job.model_copy(update={"hosts": chosen}) for job in jobs]
    most = plan.slots(jobs[0], np or (4 if demo else None))
    numbers = plan.with_one(_numbers(counts, "--counts") or plan.counts_up_to(most))
    cases = plan.cases(
        jobs, numbers, _numbers(batch_sizes, "--batch-sizes"), "batch" if fixed == "batch" else "global"
    )
    request = Request(cases, repeats, _numbers(predict, "--predict"), out, min_efficiency)
    with _progress(len(cases) * repeats) as advance:
        results, exit_code = scale_test(request, advance)
    if as_json:
        typer.echo(report.document(results), nl=False)
    else:
        for line in report.lines(results):
            typer.echo(line)
        typer.echo(f"charts and tables: {out}")
    raise typer.Exit(exit_code)


@contextmanager
def _progress(runs: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, and what moves it on by one run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=runs)
        yield lambda: progress.advance(task)


def _numbers(listed: str | None, option: str) -> list[int]:
    """The numbers of a list such as ``1,2,4``, in rising order; none where it isn't given."""
    from mlrun.errors import RequestError

    if listed is None:
        return []
    words = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise RequestError(f"{option} {listed!r} is no list of numbers", fix="write it as in 1,2,4")
    return sorted({int(word) for word in words})
