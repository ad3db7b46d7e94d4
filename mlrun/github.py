"""Annotations on a pull request, where mlrun runs under GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mlrun.errors import MlrunError
from mlrun.specfile import SpecError


@contextmanager
def annotated(spec: str, *, active: bool) -> Iterator[None]:
    """Any MlrunError in the block is also an annotation on the spec's file, each mistake on its own line.

    Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    try:
        yield
    except MlrunError as error:
        if active and os.environ.get("GITHUB_ACTIONS") == "true":
            annotate(spec, error)
        raise


def annotate(spec: str, error: MlrunError) -> None:
    mistakes = error.mistakes if isinstance(error, SpecError) else []
    for mistake in mistakes:
        place = mistake.place
        _print(spec, str(mistake), place.line or 1, place.column or 1)
    if not mistakes:
        _print(spec, str(error), 1, 1)


def _print(spec: str, message: str, line: int, column: int) -> None:
    print(f"::error file={_property(spec)},line={line},col={column}::{_data(message)}", flush=True)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
