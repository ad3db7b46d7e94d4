"""Do the hosts of a run have the same software? One table of all differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlrun.errors import RefusedError
from mlrun.probe.metal_plugins import PLUGINS, refusal

_DECISIVE = {
    "torch": ("torch", "torchvision"),
    "tensorflow": ("tensorflow", "keras", *PLUGINS),
    "sim": (),
}
"""Framework -> distributions of which every host must have the same version."""
_REQUIRED = {"torch": "torch", "tensorflow": "tensorflow"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One property in which hosts differ; ``values`` are those of each host, None where it has none."""

    what: str
    values: dict[str, str | None]
    decisive: bool
    """Whether training would break, or the replicas' bits would drift apart."""


def differences(facts: Mapping[str, Mapping[str, Any]], framework: str) -> list[Difference]:
    """All differences between hosts (name -> ``probe.system.facts``), the decisive ones first."""
    properties: list[tuple[str, bool, dict[str, str | None]]] = [
        ("mlrun", True, {host: _mlrun(told) for host, told in facts.items()}),
        ("machine", True, {host: told["machine"] for host, told in facts.items()}),
    ]
    for name in sorted({name for told in facts.values() for name in told["versions"]} - {"mlrun"}):
        versions = {host: told["versions"].get(name) for host, told in facts.items()}
        properties.append((name, name in _DECISIVE[framework], versions))
    properties += [
        ("Python", False, {host: _minor(told["python"]) for host, told in facts.items()}),
        ("system", False, {host: f"{told['system']} {told['release']}" for host, told in facts.items()}),
    ]
    found = [Difference(*p) for p in ((w, v, d) for w, d, v in properties) if len(set(p[1].values())) > 1]
    return sorted(found, key=lambda difference: not difference.decisive)


def table(found: list[Difference]) -> str:
    """The differences as text, a row for each; ``!`` marks the decisive ones."""
    if not found:
        return ""
    hosts = list(found[0].values)
    rows = [["", *hosts]]
    rows += [
        [f"{'!' if d.decisive else ' '} {d.what}", *(d.values[h] or "none" for h in hosts)] for d in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def agree(facts: Mapping[str, Mapping[str, Any]], framework: str) -> list[str]:
    """Warnings about differences that training survives, as lines for people.

    Raises:
        RefusedError: differences that break training, or a host without the framework.
    """
    needed = _REQUIRED.get(framework)
    without = [host for host, told in facts.items() if needed and told["versions"].get(needed) is None]
    if without:
        raise RefusedError(
            f"{', '.join(without)}: {needed} isn't installed in the Python that mlrun runs in there",
            fix="install it there: mlrun hosts install",
        )
    if framework == "tensorflow":
        _require_sound_plugins(facts)
    found = differences(facts, framework)
    decisive = [difference for difference in found if difference.decisive]
    if decisive:
        what = ", ".join(difference.what for difference in decisive)
        raise RefusedError(
            f"the hosts don't agree on {what} (marked !):\n{table(found)}",
            fix=_fix(decisive),
        )
    return [f"the hosts differ in {d.what}: {_spread(d.values)}" for d in found]


def _require_sound_plugins(facts: Mapping[str, Mapping[str, Any]]) -> None:
    for host, told in facts.items():
        refused = refusal(told["versions"], told["python"], told["release"], {})
        if refused is not None:
            raise RefusedError(f"{host}: {refused[0]}", fix=refused[1])


def _fix(decisive: list[Difference]) -> str:
    if any(difference.what == "machine" for difference in decisive):
        return "leave out the hosts with another kind of processor: their sums round differently"
    return "install the same on every host: mlrun hosts install"


def _spread(values: Mapping[str, str | None]) -> str:
    """``mac1 and mac2 3.11, mac3 3.12``."""
    hosts: dict[str | None, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    return ", ".join(f"{' and '.join(names)} {value or 'none'}" for value, names in hosts.items())


def _mlrun(told: Mapping[str, Any]) -> str:
    return f"{told['versions'].get('mlrun')} ({told['build']})"


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
