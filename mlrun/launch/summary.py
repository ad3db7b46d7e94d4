"""summary.json: what a run came to, folded from its events."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from mlrun import runs
from mlrun.errors import ExitCode, RequestError
from mlrun.launch.resolve import Resolved
from mlrun.protocol import (
    Assignment,
    CheckpointEvent,
    DataEvent,
    EvaluationEvent,
    Event,
    FailureEvent,
    StateEvent,
    StepEvent,
    WorkerExited,
)

_OF_RUN = (
    "unit",
    "loss",
    "metrics",
    "best",
    "step",
    "epoch",
    "device",
    "versions",
    "parameters",
    "global_batch_size",
    "left_out",
)
_OF_RANK = (
    "device",
    "samples",
    "samples_per_second",
    "seconds",
    "data_s",
    "compute_s",
    "comm_s",
    "hash",
    "batch_size",
    "skipped_steps",
    "bytes_fetched",
    "files_fetched",
    "files_cached",
)


class Summary:
    """Takes in every event, then says what it came to. What no event told is None."""

    def __init__(self, resolved: Resolved, run_dir: Path) -> None:
        self._resolved = resolved
        self._run_dir = run_dir
        self._run: dict[str, Any] = dict.fromkeys(_OF_RUN)
        self._ranks: list[dict[str, Any]] = []
        self.placed(resolved.assignments)
        self._links: list[dict[str, Any]] = []
        self._checkpoint: str | None = None
        self._reason: str | None = None
        self._failures: list[FailureEvent] = []
        self._restarts = 0
        self._started: float | None = None
        self._ended: float | None = None

    def placed(self, assignments: list[Assignment]) -> None:
        """Which rank is where, once that is decided; nothing was told of any rank before."""
        self._ranks = [
            {"rank": a.rank, "host": a.host, "exit_code": None, "signal": None, **dict.fromkeys(_OF_RANK)}
            for a in assignments
        ]

    def add(self, event: Event) -> None:
        self._started = event.time if self._started is None else self._started
        self._ended = event.time
        if isinstance(event, StateEvent) and event.rank is not None:
            self._told(event.rank, event)
        elif isinstance(event, StateEvent):
            if event.state == "restarting":
                self._restarted(event.detail["restart"])
            self._links = event.detail.get("edges", self._links)
        elif isinstance(event, StepEvent):
            self._run["step"] = max(event.step, self._run["step"] or 0)
            if event.epoch is not None:
                self._run["epoch"] = max(event.epoch, self._run["epoch"] or 0)
            self._run["loss"] = event.loss if event.loss is not None else self._run["loss"]
        elif isinstance(event, EvaluationEvent):
            self._run["metrics"] = event.metrics
        elif isinstance(event, DataEvent) and event.rank is not None:
            told = ("bytes_fetched", "files_fetched", "files_cached")
            self._ranks[event.rank] |= {key: getattr(event, key) for key in told}
        elif isinstance(event, CheckpointEvent):
            self._checkpoint = event.path
        elif isinstance(event, FailureEvent):
            self._failures.append(event)

    def _restarted(self, number: int) -> None:
        """What came before is in the events; the summary is of how the run ends."""
        self._restarts = number
        self._failures = []
        self._reason = None
        self._ranks = [{**rank, "exit_code": None, "signal": None} for rank in self._ranks]

    def exited(self, message: WorkerExited) -> None:
        self._ranks[message.rank] |= {"exit_code": message.exit_code, "signal": message.signal}

    def build(self, exit_code: int) -> dict[str, Any]:
        """The content of summary.json. Points in time are ISO 8601 in UTC, durations seconds."""
        spec = self._resolved.spec
        speeds = [rank["samples_per_second"] for rank in self._ranks]
        hashes = [rank["hash"] for rank in self._ranks]
        status = {ExitCode.DONE: "done", ExitCode.INTERRUPTED: "stopped", ExitCode.TERMINATED: "stopped"}
        return {
            "name": spec.name,
            "status": status.get(ExitCode(exit_code), "failed"),
            "exit_code": exit_code,
            "reason": self._reason,
            "restarts": self._restarts,
            "world_size": self._resolved.world_size,
            "engine": spec.allreduce.engine if self._resolved.world_size > 1 else None,
            **self._run,
            "samples_per_second": sum(speeds) if None not in speeds else None,
            "time_split": self._time_split(),
            "parameter_hash": hashes[0],
            "hashes_agree": None if None in hashes or len(hashes) == 1 else len(set(hashes)) == 1,
            "ranks": self._ranks,
            "links": self._links,
            "checkpoint": self._checkpoint or _on_disk(self._run_dir),
            "failure": _failure(self._failures[0]) if self._failures else None,
            "started": _iso(self._started),
            "ended": _iso(self._ended),
            "run_dir": str(self._run_dir),
        }

    def _told(self, rank: int, event: StateEvent) -> None:
        detail = event.detail
        self._ranks[rank] |= {key: detail[key] for key in _OF_RANK if key in detail}
        if rank == 0:
            self._run |= {key: detail[key] for key in _OF_RUN if detail.get(key) is not None}
            self._checkpoint = detail.get("checkpoint") or self._checkpoint
            self._reason = detail.get("reason", self._reason)

    def _time_split(self) -> dict[str, float] | None:
        """Shares of the ranks' training time, which add up to 1."""
        parts = {name: [rank[f"{name}_s"] for rank in self._ranks] for name in ("data", "compute", "comm")}
        if any(None in seconds for seconds in parts.values()):
            return None
        whole = sum(sum(seconds) for seconds in parts.values())
        return {name: sum(seconds) / whole for name, seconds in parts.items()} if whole else None


def _on_disk(run_dir: Path) -> str | None:
    """The latest checkpoint, where what told of it was lost with its agent."""
    try:
        latest = runs.latest_checkpoint(run_dir)
    except RequestError:
        return None
    return str(latest) if latest else None


def _failure(event: FailureEvent) -> dict[str, Any]:
    keys = ("kind", "message", "rank", "host", "step", "last_lines")
    return {key: getattr(event, key) for key in keys}


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="milliseconds")
