"""A worker's own hold on the lease, for when its agent is alive but does nothing (stopped, or stuck)."""

from __future__ import annotations

import faulthandler
import os


class Watchdog:
    """Ends this process once ``renew`` wasn't called for ``seconds``, whatever Python is doing then.

    The timer is faulthandler's: a native thread that needs no GIL. What it would print goes nowhere, since
    writing to the log's pipe could block when nobody reads it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self.renew()

    def renew(self) -> None:
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._nowhere)

    def close(self) -> None:
        """From now on nothing ends this process. Idempotent."""
        faulthandler.cancel_dump_traceback_later()
