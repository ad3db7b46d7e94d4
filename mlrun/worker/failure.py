"""A failure in words: what the launcher and people are told when a worker ends badly."""

from __future__ import annotations

import traceback

from mlrun.allreduce.communicator import AbortedError, DeadlineError, PeerLostError
from mlrun.allreduce.links import LinkError
from mlrun.errors import MlrunError, RefusedError, RequestError
from mlrun.protocol import FailureEvent
from mlrun.worker.verdict import VerdictError

LAST_LINES = 20


def failure_event(error: BaseException, rank: int) -> FailureEvent:
    """The event that tells of ``error`` on ``rank``.

    ``consequence`` is set where the cause lies with another rank: a lost or aborting peer, or a common
    verdict on somebody else.
    """
    if isinstance(error, VerdictError):
        elsewhere = rank != error.culprits[0]
        return FailureEvent(error.kind, str(error), step=error.step, consequence=elsewhere)
    if isinstance(error, RequestError):
        return FailureEvent("request", str(error))
    if isinstance(error, RefusedError):
        return FailureEvent("refused", str(error))
    if isinstance(error, MlrunError):
        return FailureEvent("exception", str(error))
    for complaint, kind, consequence in _COMPLAINTS:
        if isinstance(error, complaint):
            return FailureEvent(kind, str(error), consequence=consequence)
    lines = "".join(traceback.format_exception(error)).splitlines()[-LAST_LINES:]
    return FailureEvent("exception", f"{type(error).__name__}: {_text_of(error)}", last_lines=lines)


def _text_of(error: BaseException) -> str:
    """What the error says; an error that can't even say that must not hide itself behind another."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text can't be had: {type(second).__name__})"


_COMPLAINTS: tuple[tuple[type[Exception], str, bool], ...] = (
    (DeadlineError, "timeout", False),
    (LinkError, "timeout", False),
    (PeerLostError, "lost-host", True),
    (AbortedError, "exception", True),
)
"""Errors about other ranks: the event's kind, and whether the cause surely lies elsewhere."""
