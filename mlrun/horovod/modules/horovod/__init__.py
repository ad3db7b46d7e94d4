"""mlrun's stand-in for Horovod: docs/horovod.md."""

from typing import Any, NoReturn

from mlrun.horovod.common import *

__version__ = "0.28.1"


def run(*args: Any, **options: Any) -> NoReturn:
    """Refused: the ranks are there already."""
    raise NotImplementedError(
        "horovod.run isn't there: mlrun launch starts the ranks; call the function itself"
    )
