"""mlrun: one command trains one model on all the Macs in the room."""

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "mlrun-ring"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:
    __version__ = "0.0.0"
