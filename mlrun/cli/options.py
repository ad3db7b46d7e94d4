"""Options that several commands have: one name and one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlrun.errors import RequestError

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in optimizer.lr=0.2. Repeatable."),
]
Workers = Annotated[int | None, typer.Option("-np", metavar="N", help="Workers in all.")]
HostList = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        "-H",
        metavar="LIST",
        help="Which hosts: mac1,mac2:2,anna@mac3,@group. Without it, those of MLRUN_HOSTS.",
    ),
]
Hostfile = Annotated[
    Path | None, typer.Option("--hostfile", metavar="FILE", help="Hosts in YAML, host slots=N or MLX's JSON.")
]
ConsoleKind = Annotated[
    str, typer.Option("--console", help="live, plain, json or off; live is plain where there is no terminal.")
]
LogRanks = Annotated[
    str | None,
    typer.Option("--log-ranks", metavar="LIST", help="Show the output of these ranks alone, as in 0,2."),
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", metavar="DIR", help="Where the run folders are.")]
RunName = Annotated[str, typer.Argument(metavar="RUN|last", help="A run's id or name, its start, or last.")]


def ranks_of(listed: str | None) -> frozenset[int] | None:
    """The ranks of ``--log-ranks``; None where it isn't given.

    Raises:
        RequestError: not a list of ranks.
    """
    if listed is None:
        return None
    words = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() for word in words):
        raise RequestError(f"--log-ranks {listed!r} is no list of ranks", fix="write it as in 0,2")
    return frozenset(map(int, words))
