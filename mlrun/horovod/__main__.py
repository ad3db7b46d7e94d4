"""``python -m mlrun.horovod SCRIPT.py [ARGS]``: one rank of a script written for Horovod.

Under torchrun the ranks meet at its store; in a worker of ``mlrun launch`` they have met already.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.own import lend, lent
from mlrun.errors import MlrunError, RequestError
from mlrun.horovod import install

MEET_S = 300.0


def main(arguments: list[str]) -> None:
    """Run the script as ``python SCRIPT.py ARGS`` would.

    Raises:
        RequestError: no script, or this process is no rank.
        LinkError: a rank is missing.
    """
    if not arguments or not Path(arguments[0]).is_file():
        raise RequestError(
            f"there is no script {arguments[0]}" if arguments else "no script is given",
            fix="torchrun --nproc-per-node 2 -m mlrun.horovod SCRIPT.py ARGS",
        )
    met = None if lent() is not None else _meet()
    sys.argv = arguments
    install()
    sys.path[0:0] = [str(Path(arguments[0]).resolve().parent)]
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except BaseException as error:
        if met is not None and not (isinstance(error, SystemExit) and not error.code):
            met.abort(f"its script ended with {type(error).__name__}")
        raise
    finally:
        if met is not None:
            lend(None)
            met.close()


def _meet() -> Communicator:
    """The ring of all ranks that torchrun has started."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise RequestError(
            "this process isn't a rank of anything",
            fix="torchrun --nproc-per-node 2 -m mlrun.horovod SCRIPT.py ARGS",
        )
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 - TensorFlow needs no torch
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415

    from mlrun.allreduce.ring import from_store  # noqa: PLC0415

    store, rank, size = next(rendezvous("env://"))
    own_part: Any = PrefixStore("mlrun-horovod", store)
    communicator = from_store(own_part, rank, size, MEET_S)
    lend(communicator)
    return communicator


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MlrunError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
