"""How far a host's clock is ahead of this machine's, out of what Ping and Pong tell."""

from __future__ import annotations

from dataclasses import dataclass

from mlrun.protocol import Pong


@dataclass(slots=True)
class HostClock:
    """The estimate with the shortest round trip counts: it errs by half of that at most (as in NTP)."""

    ahead_s: float | None = None
    round_trip_s: float = float("inf")

    def heard(self, pong: Pong, now: float) -> None:
        """``now``: seconds since the epoch on this machine, when ``pong`` came in."""
        round_trip = now - pong.sent
        if pong.time is not None and 0 <= round_trip < self.round_trip_s:
            self.round_trip_s = round_trip
            self.ahead_s = pong.time - (pong.sent + now) / 2
