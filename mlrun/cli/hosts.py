"""``mlrun hosts``: commands that change or describe the hosts themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlrun.cli.options import Hostfile, HostList

if TYPE_CHECKING:
    from mlrun.hosts import Host

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]
Framework = Annotated[str, typer.Option(help="torch, tensorflow or sim.")]

hosts = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(hosts, name="hosts", help="Add hosts, give them what they need, check them, clean up.")


@hosts.command(epilog="Example: mlrun hosts add mac1 anna@mac2 --group studios")
def add(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mac1, anna@mac2, mac3:2.")],
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Save them in this group too; all are in @all.")
    ] = None,
) -> None:
    """Meet hosts: accept their keys, let them admit this machine's, and save them."""
    from mlrun.fleet.contact import add as run
    from mlrun.hosts import parse_hosts

    raise typer.Exit(run(parse_hosts(",".join(names)), group, typer.echo))


@hosts.command(epilog="Example: mlrun hosts install --hosts @studios")
def install(
    listed: HostList = None,
    hostfile: Hostfile = None,
    framework: Framework = "torch",
    offline: Annotated[
        bool, typer.Option("--offline", help="Send all packages from here: for hosts without internet.")
    ] = False,
) -> None:
    """Give hosts mlrun, framework and the packages of a lock file or requirements.txt, as they are here."""
    from mlrun.fleet.install import install as run

    raise typer.Exit(run(_chosen(listed, hostfile), framework, offline=offline, say=typer.echo))


@hosts.command(epilog="Example: mlrun hosts check --hosts @studios")
def check(listed: HostList = None, hostfile: Hostfile = None, framework: Framework = "torch") -> None:
    """Say of each host whether it is reached, what it has, and how it is linked; 4 where one isn't ready."""
    from mlrun.doctor.overview import check as run

    raise typer.Exit(run(_chosen(listed, hostfile), framework, say=typer.echo))


@hosts.command(epilog="Example: mlrun hosts clean --hosts @studios --dry-run")
def clean(listed: HostList = None, hostfile: Hostfile = None, dry_run: DryRun = False) -> None:
    """Remove code that was sent and folders of runs that never came home; environments stay."""
    from mlrun.fleet.remove import clean as run

    raise typer.Exit(run(_chosen(listed, hostfile), dry_run=dry_run, say=typer.echo))


@hosts.command(epilog="Example: mlrun hosts uninstall --hosts mac4 --dry-run")
def uninstall(listed: HostList = None, hostfile: Hostfile = None, dry_run: DryRun = False) -> None:
    """Remove all of mlrun from hosts."""
    from mlrun.fleet.remove import uninstall as run

    raise typer.Exit(run(_chosen(listed, hostfile), dry_run=dry_run, say=typer.echo))


def _chosen(listed: str | None, hostfile: Path | None) -> list[Host]:
    from mlrun.errors import RequestError
    from mlrun.hosts import chosen_hosts

    chosen = chosen_hosts(listed, hostfile)
    if not chosen:
        raise RequestError("no hosts are named", fix="say which: --hosts mac1,mac2, or @all for all added")
    return chosen
