"""How fast one worker was alone, by this user's past runs: what the screen's speed-up compares with."""

from __future__ import annotations

from pathlib import Path

from mlrun import index, runs
from mlrun.errors import MlrunError
from mlrun.launch.resolve import Resolved
from mlrun.specfile import load

_SAME = ("framework", "task", "model", "data", "precision", "grad_accumulation")
_LATEST = 20


def run_alone(resolved: Resolved) -> tuple[str, float] | None:
    """Name and samples per second of the newest complete run of one worker that did each worker's work here.

    The same work: model, data, precision and samples per step. It ran on one of this run's hosts.
    """
    if resolved.world_size < 2 or resolved.spec.run is not None:
        return None
    hosts = {host.name for host in resolved.hosts}
    named = [entry.folder for entry in index.entries() if _is_named(entry, resolved.spec.name)]
    for folder in named[:_LATEST]:
        summary = runs.read_summary(folder)
        ranks = summary.get("ranks") or [{}]
        alone = summary.get("status") == "done" and summary.get("world_size") == 1
        if not alone or ranks[0].get("host") not in hosts:
            continue
        if ranks[0].get("batch_size") == resolved.shares[0] and _same_work(resolved, folder):
            return folder.name, summary["samples_per_second"]
    return None


def _is_named(entry: index.Entry, name: str) -> bool:
    return not entry.smoke and entry.folder.name.startswith(f"{name}-")


def _same_work(resolved: Resolved, folder: Path) -> bool:
    try:
        past = load(folder / runs.SPEC_FILE)
    except MlrunError:
        return False
    return all(getattr(past, key) == getattr(resolved.spec, key) for key in _SAME)
