"""``mlrun bench``: parse, call, render. Every command imports this module, so it imports nothing heavy."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from mlrun.cli.options import Hostfile, HostList
from mlrun.errors import RequestError, RunFailedError

if TYPE_CHECKING:
    from mlrun.bench.allreduce import Ratio, Row

SIZES = "4KB,64KB,1MB,16MB,100MB"

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"), (1, "B"))


def register(app: typer.Typer) -> None:
    """Give ``app`` the command ``bench allreduce``."""
    bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")
    bench.command("allreduce", epilog="Example: mlrun bench allreduce -np 2 --engines ring,gloo,mpi")(
        allreduce
    )
    app.add_typer(bench, name="bench")


def allreduce(
    *,
    np: Annotated[
        int | None,
        typer.Option("-np", metavar="N", help="Ranks: 2 on this machine, or all slots of the hosts."),
    ] = None,
    hosts: HostList = None,
    hostfile: Hostfile = None,
    engines: Annotated[str, typer.Option(help="Of ring, gloo, mpi, horovod.")] = "ring",
    sizes: Annotated[str, typer.Option(help="Payloads; units are powers of 1024.")] = SIZES,
    dtype: Annotated[str, typer.Option(help="Element type.")] = "float32",
    links: Annotated[int, typer.Option(metavar="K", help="Sockets per neighbour.")] = 1,
    rounds: Annotated[int, typer.Option(help="Turns of every engine at every size.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Compare all-reduce engines over TCP, taking turns, and with what plain sockets can do.

    With --hosts: the ring over the links between them.
    """
    from mlrun.bench.allreduce import compare, parse_size
    from mlrun.hosts import chosen_hosts

    if rounds < 1 or links < 1:
        raise RequestError("--rounds and --links are at least 1")
    payloads = [parse_size(each) for each in sizes.split(",")]
    show = _print_json if as_json else _print_table
    if chosen := chosen_hosts(hosts, hostfile):
        from mlrun.bench.hosts import measure

        if engines != "ring":
            raise RequestError("over hosts the ring alone is measured", fix="leave --engines out")
        console = "off" if as_json else "plain"
        rows = measure(chosen, np, payloads, dtype=dtype, links=links, rounds=rounds, console=console)
        for row in rows:
            show([row])
    else:
        _warn_of_load()
        names = engines.split(",")
        rows = compare(np or 2, names, payloads, dtype=dtype, links=links, rounds=rounds, on_rows=show)
    wrong = sorted({row.engine for row in rows if row.wrong})
    if wrong:
        raise RunFailedError(f"wrong results from {', '.join(wrong)}")


def _warn_of_load() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.5 * cores:
        typer.echo(
            f"This machine is busy (load {load:.1f} on {cores} cores): don't trust the figures.", err=True
        )


def _print_json(rows: list[Row]) -> None:
    for row in rows:
        print(json.dumps(dataclasses.asdict(row)), flush=True)


def _print_table(rows: list[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{_size(rows[0].bytes)}: {rows[0].count} {rows[0].dtype}; rates in GB/s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for name in ("engine", "time", "algbw", "busbw", "wrong", "of limit", "ring/this"):
        table.add_column(name, justify="left" if name == "engine" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.engine,
            _time(row.seconds),
            f"{row.algorithm_rate / 1e9:.3f}",
            f"{row.bus_rate / 1e9:.3f}",
            str(row.wrong),
            _ratio(row.of_limit),
            _ratio(row.ring_time),
        )
    Console().print(table)


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} [{ratio.low:.2f},{ratio.high:.2f}]"


def _size(count: int) -> str:
    unit, name = next((unit, name) for unit, name in _UNITS if count >= unit)
    return f"{count / unit:g} {name}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
