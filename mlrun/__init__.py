"""mlrun: one command trains one model on all the Macs in the room."""

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "mlrun-ring"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:
    __version__ = "0.0.0"


def report(samples: int, loss: float | None = None) -> None:
    """Tell the console of one more step of a script: this rank's samples, and the loss where it is at hand.

    Outside of ``mlrun launch`` it does nothing.
    """
    from mlrun.worker import reports  # noqa: PLC0415 - every command imports this module

    reports.report(samples, loss)
