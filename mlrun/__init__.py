"""mlrun: one command trains one model on all the Macs in the room."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "mlrun-ring"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:
    __version__ = "0.0.0"

reporter: Callable[[int, float | None], None] | None = None
"""Who hears of a script's steps: set in a worker of ``mlrun launch``."""


def report(samples: int, loss: float | None = None) -> None:
    """Tell the console of one more step of a script: this rank's samples, and the loss where it is at hand.

    Outside of ``mlrun launch`` it does nothing, so a script may keep the line.
    """
    if reporter is not None:
        reporter(samples, loss)
