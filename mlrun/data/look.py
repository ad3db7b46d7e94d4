"""What a host says of the data on it before a run starts. The standard library alone: agents ask."""

from __future__ import annotations

from pathlib import Path

from mlrun.data.listing import list_tree
from mlrun.protocol import DataSeen, LookAtData


def look(request: LookAtData) -> DataSeen:
    """How many files there are, of which classes, and a hash of their names."""
    path = Path(request.workdir).expanduser() / Path(request.path).expanduser()
    try:
        listing = list_tree(path, request.source)
    except FileNotFoundError:
        return DataSeen(str(path))
    except OSError as error:
        return DataSeen(str(path), problem=(error.strerror or str(error)).lower())
    classes = listing.classes("train/" if listing.has_split else "")
    counts = {name: len(files) for name, files in sorted(classes.items())}
    names = "" if path.is_file() else listing.hash()  # One file may be called otherwise on each host.
    return DataSeen(str(path), counts, len(listing.entries), names)
