"""What a run has left in its folder on this host, on the way to the launcher.

``python -m mlrun.agent.results FOLDER checkpoints|everything [HAVE...]`` writes a tar stream. Its first
member, ``CHECKPOINTS``, says which checkpoints there are and which is the best; those that aren't in HAVE
follow, and with ``everything`` the logs and timelines. Then a line is read: ``remove`` removes the folder.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

CHECKPOINTS = "checkpoints.json"
REMOVE = b"remove\n"
_FOLDER = "checkpoints"
_LAST = "state.json"
"""A checkpoint that has it is whole, so it is sent last."""


def pack(folder: Path, *, everything: bool, have: Collection[str], out: IO[bytes]) -> None:
    """Write the tar stream of a run's ``folder``."""
    root = folder / _FOLDER
    names = sorted(path.parent.name for path in root.glob(f"[!.]*/{_LAST}") if not path.parent.is_symlink())
    best = root / "best"
    listing = {"names": names, "best": os.readlink(best) if best.is_symlink() else None}
    with tarfile.open(fileobj=out, mode="w|", bufsize=1 << 18, format=tarfile.PAX_FORMAT) as tar:
        content = json.dumps(listing).encode()
        info = tarfile.TarInfo(CHECKPOINTS)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        for path in sorted(folder.glob("rank-*.log")) + sorted(folder.glob("*.json")) if everything else ():
            _add(tar, folder, path)
        for name in names:
            if name not in have:
                files = [path for path in sorted((root / name).rglob("*")) if path.is_file()]
                for path in sorted(files, key=lambda path: path == root / name / _LAST):
                    _add(tar, folder, path)


def _add(tar: tarfile.TarFile, folder: Path, path: Path) -> None:
    try:
        with path.open("rb") as file:
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)
    except FileNotFoundError:
        return  # A checkpoint that has just been pruned: without its last file it doesn't count.


def main() -> int:
    folder = Path(sys.argv[1]).expanduser()
    pack(folder, everything=sys.argv[2] == "everything", have=sys.argv[3:], out=sys.stdout.buffer)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.readline() == REMOVE:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
