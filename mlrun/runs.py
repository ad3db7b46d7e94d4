"""The run folder: everything a run leaves behind, and where it is found again.

``spec.yaml`` (the spec as run), ``events.jsonl``, ``rank-K.log``, ``checkpoints/``, ``timeline.json``,
``summary.json`` and ``tensorboard/``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from mlrun.errors import RequestError
from mlrun.protocol import Event
from mlrun.spec import JobSpec
from mlrun.wire import ProtocolError, decode, encode

SPEC_FILE = "spec.yaml"
EVENTS_FILE = "events.jsonl"
SUMMARY_FILE = "summary.json"
TIMELINE_FILE = "timeline.json"
CHECKPOINTS = "checkpoints"
STATE_FILE = "state.json"
LOOK_S = 0.2
"""How often a file that grows is looked at."""


_SECRET_NAME = re.compile(
    r"(key|token|secret|password|passwd|passphrase|credential|auth)s?(_|$)", re.IGNORECASE
)
_PASSWORD_IN_URL = re.compile(r"://[^/\s]*:[^/\s]*@")


class _SpecDumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2 would read as a number, which PyYAML (1.1) leaves bare."""


_SpecDumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+"),
    list("-+.0123456789"),
)


def create(runs_dir: Path, name: str) -> Path:
    """A new run folder ``<name>-<time>``, unique even among runs that start in one second.

    Raises:
        RequestError: ``runs_dir`` can't be written.
    """
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 10_000):
            folder = runs_dir / (stem if attempt == 1 else f"{stem}-{attempt}")
            with suppress(FileExistsError):
                folder.mkdir()
                (folder / CHECKPOINTS).mkdir()
                return folder.resolve()
    except OSError as error:
        raise RequestError(
            f"can't make a run folder in {runs_dir}: {error.strerror}",
            fix="choose another place with --runs-dir",
        ) from error
    raise RequestError(f"{runs_dir} is full of runs named {stem}", fix="choose another place with --runs-dir")


def all_runs(runs_dir: Path) -> list[Path]:
    """Run folders, the newest first."""
    folders = [path.parent.resolve() for path in runs_dir.glob(f"*/{SPEC_FILE}")]
    return sorted(folders, key=lambda folder: (folder / SPEC_FILE).stat().st_mtime_ns, reverse=True)


def spec_text(spec: JobSpec) -> str:
    """The resolved spec as YAML; ``env`` without its secrets, for which null stands."""
    content = spec.model_dump(mode="json")
    for block in (content, *(host for host in content["hosts"] if isinstance(host, dict))):
        block["env"] = {k: None if _is_secret(k, v) else v for k, v in block["env"].items()}
    return yaml.dump(content, Dumper=_SpecDumper, sort_keys=False, allow_unicode=True)


def secrets_of(spec: JobSpec) -> list[str]:
    """The names of what ``env`` holds and the run folder doesn't: it seems to be secret."""
    blocks = [spec.env, *(host.env for host in spec.hosts if not isinstance(host, str))]
    return sorted({name for env in blocks for name, value in env.items() if _is_secret(name, value)})


def _is_secret(name: str, value: str | None) -> bool:
    return value is not None and bool(_SECRET_NAME.search(name) or _PASSWORD_IN_URL.search(value))


def write_spec(run_dir: Path, spec: JobSpec) -> None:
    write_atomically(run_dir / SPEC_FILE, spec_text(spec))


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The whole checkpoint with the highest step; unfinished ones have a leading dot.

    Raises:
        RequestError: one of them is damaged, so which is the latest can't be told.
    """
    found = [(_step_of(state), state.parent) for state in (run_dir / CHECKPOINTS).glob(f"[!.]*/{STATE_FILE}")]
    return max(found)[1] if found else None


def _step_of(state: Path) -> int:
    try:
        return int(json.loads(state.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"{state} is damaged ({type(error).__name__}: {error})",
            fix=f"remove {state.parent} to go on from another checkpoint of the run",
        ) from error


def read_summary(run_dir: Path) -> dict[str, Any]:
    """The content of summary.json; empty where there is none that can be read."""
    try:
        summary = json.loads((run_dir / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def write_atomically(path: Path, text: str) -> None:
    """The file is the old one or the new one, whatever happens meanwhile."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    write_atomically(run_dir / SUMMARY_FILE, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def merge_timelines(run_dir: Path, ahead_s: Mapping[int, float]) -> None:
    """One Chrome trace of all ranks on one clock, from the ``timeline-rank-K.json`` of each.

    ``ahead_s``: by rank, how far its host's clock is ahead of that one clock.
    """
    parts = sorted(run_dir.glob("timeline-rank-*.json"))
    if not parts:
        return
    events: list[Any] = []
    for part in parts:
        try:
            trace = json.loads(part.read_text(encoding="utf-8"))
        except ValueError:
            continue  # Its worker was killed while writing it; the others' are worth keeping.
        shift = 1e6 * ahead_s.get(int(part.stem.rpartition("-")[2]), 0.0)
        for event in trace["traceEvents"] if isinstance(trace, dict) else trace:
            events.append({**event, "ts": event["ts"] - shift} if "ts" in event else event)
    write_atomically(run_dir / TIMELINE_FILE, json.dumps({"traceEvents": events}))
    for part in parts:
        part.unlink()


def read_events(run_dir: Path) -> Iterator[Event]:
    """The events of a run in the order they came; lines that this version doesn't know are left out.

    Raises:
        RequestError: the run has none.
    """
    try:
        file = (run_dir / EVENTS_FILE).open("rb")
    except OSError as error:
        raise RequestError(
            f"{run_dir.name} has no {EVENTS_FILE}: {error.strerror}", fix="name another run"
        ) from error
    with file:
        for line in file:
            with suppress(ProtocolError):
                if isinstance(event := decode(line), Event):
                    yield event


def follow(path: Path, going_on: Callable[[], bool]) -> Iterator[str]:
    """Whole lines, as long as ``going_on`` says that more may come; the last one needs no end."""
    with path.open(encoding="utf-8", errors="replace") as file:
        held = ""
        while True:
            lasts = going_on()  # asked before the read: what is written until then is read
            if part := file.readline():
                held += part
                if held.endswith("\n"):
                    yield held[:-1]
                    held = ""
            elif lasts:
                time.sleep(LOOK_S)
            else:
                break
        if held:
            yield held


class EventLog:
    """``events.jsonl``, appended to: whole lines, each written out at once.

    Raises:
        RequestError: it can't be written.
    """

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / EVENTS_FILE
        try:
            _drop_torn_line(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise RequestError(
                f"can't write {path}: {error.strerror}", fix="allow writing there, or launch a new run"
            ) from error

    def write(self, event: Event) -> None:
        self._file.write(encode(event))

    def close(self) -> None:
        self._file.close()


def _drop_torn_line(path: Path) -> None:
    """A launcher killed while writing leaves half a line, which would spoil the next one."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
