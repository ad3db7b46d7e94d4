"""What may spoil a long run on a host that is ready for a short one: lines for people, before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SPOILERS = {
    "on_battery": "runs on its battery, which slows it and won't last: plug it in",
    "low_power": "is in Low Power Mode, so all wait for it: switch that off in System Settings, Battery",
    "automatic_updates": "installs macOS updates by itself and may restart: switch that off for a long run",
}
_CHECKPOINT_BYTES = 12
"""For each parameter: itself and two moments of the optimizer, in fp32."""


def host_warnings(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What hosts (name -> ``probe.system.facts``) say of power and updates; what is unknown isn't told."""
    return [
        f"{host} {text}" for key, text in _SPOILERS.items() for host, told in facts.items() if told.get(key)
    ]


def lid_note(host: str | None) -> str:
    """What a portable launcher should know; ``host``: the first one, where that is another machine."""
    ends = "closing this lid ends the run"
    return f"{ends}; with --detach it would live on {host}" if host is not None else ends


def room_warnings(facts: Mapping[str, Mapping[str, Any]], parameters: int | None) -> list[str]:
    """Hosts without room for two checkpoints: a new one is whole before the old one goes."""
    if parameters is None:
        return []
    needed = 2 * parameters * _CHECKPOINT_BYTES
    return [
        f"{host} has {told['disk_free_bytes'] / 1e9:.1f} GB of free disk, and two checkpoints of this model "
        f"may take {needed / 1e9:.1f} GB: make room there"
        for host, told in facts.items()
        if told.get("disk_free_bytes") is not None and told["disk_free_bytes"] < needed
    ]
