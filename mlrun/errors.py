"""Errors for people: what happened, where, why it is likely, and the one thing to do.

The exit codes of every command are here and nowhere else.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    DONE = 0
    RUN_FAILED = 1
    REQUEST_WRONG = 2
    REFUSED = 3
    """A check before the start said no; nothing was started."""
    THRESHOLD_MISSED = 4
    """A threshold was missed, or findings were reported."""
    INTERRUPTED = 130
    TERMINATED = 143


class MlrunError(Exception):
    """Shown without a traceback. ``fix`` is the one thing to do."""

    exit_code: ExitCode = ExitCode.RUN_FAILED

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  Fix: {self.fix}" if self.fix else self.message


class RequestError(MlrunError):
    """The request (spec, flags, paths) was wrong."""

    exit_code = ExitCode.REQUEST_WRONG


class RefusedError(MlrunError):
    """A check before the start refused; nothing was started."""

    exit_code = ExitCode.REFUSED


class RunFailedError(MlrunError):
    """The run started and failed."""
