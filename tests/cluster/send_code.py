"""``python -m tests.cluster.send_code FOLDER HOST``: ship a folder and print where it lies, or the error."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mlrun.errors import MlrunError
from mlrun.hosts import Host
from mlrun.launch.ship import manifest, ship


def main() -> int:
    workdir = Path(sys.argv[1])
    try:
        print(asyncio.run(ship(workdir, manifest(workdir), Host(sys.argv[2]))))
    except MlrunError as error:
        print(error)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
