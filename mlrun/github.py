"""Annotations on a pull request, where mlrun runs under GitHub Actions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mlrun.errors import MlrunError
from mlrun.specfile import SpecError


@contextmanager
def annotated(spec: str, *, active: bool) -> Iterator[None]:
    """Any MlrunError in the block is also an annotation on the spec's file, each mistake on its own line.

    Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    try:
        yield
    except SpecError as error:
        for mistake in error.mistakes if active else ():
            _annotate(spec, str(mistake), mistake.place.line, mistake.place.column)
        raise
    except MlrunError as error:
        if active:
            _annotate(spec, str(error))
        raise


def annotate_failure(spec: str, summary: Mapping[str, Any]) -> None:
    """The first cause in a run's summary as an annotation; nothing where the run didn't fail."""
    if failure := summary.get("failure"):
        _annotate(spec, f"rank {failure['rank']} on {failure['host']}: {failure['message']}")


def _annotate(spec: str, message: str, line: int | None = None, column: int | None = None) -> None:
    # To stderr, which Actions reads too: stdout may be the event stream.
    if os.environ.get("GITHUB_ACTIONS") == "true":
        position = f"line={line or 1},col={column or 1}"
        print(f"::error file={_property(spec)},{position}::{_data(message)}", file=sys.stderr, flush=True)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
