"""Bandwidths measured lately, so that the next run need not measure them again.

Whether a link works is never remembered: that is tried before every run. An old figure can therefore only
be wrong about speed, and it is dropped once the interfaces, the round trip or an hour say otherwise.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlrun.network.candidates import Measured

VALID_S = 3600.0
_SLOWER, _FASTER = 8.0, 1 / 8
"""A round trip that changed by more is another cable, or a busy one."""


class Memory:
    """Bandwidths by pair of addresses, in ``path``; without a path, of this run alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, dict[str, float]] = _read(path) if path is not None else {}

    def recall(self, pair: tuple[str, str], measured: Measured) -> float | None:
        """The bandwidth in bytes per second, where it is known and can still be believed."""
        entry = self._known.get(_key(pair, measured))
        if entry is None or not 0 <= time.time() - entry["time"] < VALID_S:
            return None
        change = measured.round_trip_s / entry["round_trip_s"] if entry["round_trip_s"] > 0 else 0.0
        return entry["bytes_per_s"] if _FASTER < change < _SLOWER else None

    def note(self, pair: tuple[str, str], measured: Measured) -> None:
        if measured.bytes_per_s:
            self._known[_key(pair, measured)] = {
                "time": time.time(),
                "round_trip_s": measured.round_trip_s,
                "bytes_per_s": measured.bytes_per_s,
            }

    def keep(self) -> None:
        """Write to the file what is still valid. A folder that can't be written is no reason to stop."""
        if self._path is None:
            return
        valid = {key: entry for key, entry in self._known.items() if time.time() - entry["time"] < VALID_S}
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(valid, indent=1))
            beside.replace(self._path)


def default_path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlrun" / "links.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What the file says; entries that make no sense are left out."""
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    names = ("time", "round_trip_s", "bytes_per_s")
    return {
        key: entry
        for key, entry in (document.items() if isinstance(document, dict) else ())
        if isinstance(entry, dict) and all(isinstance(entry.get(name), int | float) for name in names)
    }


def _key(pair: tuple[str, str], measured: Measured) -> str:
    ends = zip(pair, measured.candidate.ends, strict=True)
    return " - ".join(f"{host} {end.interface} {end.kind} {end.address}" for host, end in ends)
