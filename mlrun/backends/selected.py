"""Parameters chosen by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from mlrun.errors import RequestError


def selected(names: Iterable[str], patterns: Sequence[str], key: str) -> set[str]:
    """Those of ``names`` that match one of ``patterns`` (shell-style; ``bias`` also means ``*.bias``).

    Raises:
        RequestError: a pattern that matches none; ``key`` is where in the spec it stands.
    """
    known = list(names)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in known if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")}
        if not found:
            near = get_close_matches(pattern, known, n=1, cutoff=0) or ["?"]
            raise RequestError(
                f"{key}: {pattern!r} matches no parameter of the model",
                fix=f"correct or remove it; a parameter's name looks like {near[0]}",
            )
        chosen |= found
    return chosen
