"""Run folders: made, found and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlrun import runs
from mlrun.errors import RequestError
from mlrun.index import find
from mlrun.protocol import LogEvent
from mlrun.spec import JobSpec
from mlrun.specfile import load
from mlrun.wire import decode

SPEC = {"name": "job", "model": {"name": "mlp"}, "batch_size": 8, "steps": 1}


def make(runs_dir: Path, name: str) -> Path:
    folder = runs.create(runs_dir, name)
    runs.write_spec(folder, JobSpec.model_validate(SPEC))
    return folder


def test_folders_are_unique_even_within_a_second(tmp_path: Path) -> None:
    assert len({runs.create(tmp_path, "same") for _ in range(5)}) == 5


def test_a_place_that_cannot_hold_runs_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"can't make a run folder in .*file"):
        runs.create(tmp_path / "file", "job")


def test_runs_are_found_by_last_name_prefix_and_path(tmp_path: Path) -> None:
    first, second = make(tmp_path, "a"), make(tmp_path, "b")
    assert find(tmp_path, "last") == second
    assert find(tmp_path, first.name) == first
    assert find(tmp_path, "a-") == first
    assert find(tmp_path / "elsewhere", str(first)) == first
    with pytest.raises(RequestError, match=f"no run 'c' .*{second.name}, {first.name}"):
        find(tmp_path, "c")


def test_the_spec_comes_back_as_it_was(tmp_path: Path) -> None:
    """Also text that only YAML 1.1 would take for text, and values that only look like another type."""
    odd = ["1e-3", "0o14", "off", "yes", "22:30", "0x1F", "null", "~", "1.5", ".5", "", "é: #"]
    spec = JobSpec.model_validate(SPEC | {"data": {"args": {"odd": odd, "rate": 1e-05}}, "env": {"A": "010"}})
    runs.write_spec(tmp_path, spec)
    assert load(tmp_path / runs.SPEC_FILE) == spec


def test_secrets_of_env_stay_out_of_the_stored_spec(tmp_path: Path) -> None:
    secret = {"HF_TOKEN": "abc", "db_password": "abc", "STORE": "s3://me:abc@host/data"}
    plain = {"TOKENIZERS_PARALLELISM": "false", "STORE_URL": "https://host:443/a@b", "AUTHOR": "me"}
    host = {"name": "mac1", "env": {"API_KEY": "abc", "CACHE": "/x"}}
    spec = JobSpec.model_validate(SPEC | {"env": {**secret, **plain}, "hosts": ["mac2", host]})
    folder = runs.create(tmp_path, "job")
    runs.write_spec(folder, spec)
    assert "abc" not in (folder / "spec.yaml").read_text()
    again = load(folder / "spec.yaml")
    assert again.env == {**dict.fromkeys(secret), **plain}
    assert runs.secrets_of(spec) == ["API_KEY", "HF_TOKEN", "STORE", "db_password"]


def test_the_latest_whole_checkpoint_counts(tmp_path: Path) -> None:
    assert runs.latest_checkpoint(tmp_path) is None
    for name, step in (("step-00000009", 9), ("step-00000010", 10), (".unfinished-step-00000011", 11)):
        folder = tmp_path / runs.CHECKPOINTS / name
        folder.mkdir(parents=True)
        (folder / runs.STATE_FILE).write_text(json.dumps({"step": step}))
    assert runs.latest_checkpoint(tmp_path) == tmp_path / runs.CHECKPOINTS / "step-00000010"


@pytest.mark.parametrize("content", [b"{bad", b"[]", b"{}", b"\xff", b'{"step": "x"}', b'{"step": null}'])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / runs.CHECKPOINTS / "step-00000009"
    folder.mkdir(parents=True)
    (folder / runs.STATE_FILE).write_bytes(content)
    with pytest.raises(RequestError, match=r"step-00000009.*damaged"):
        runs.latest_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"{bad", b"[]", b"\xff", b""])
def test_a_damaged_summary_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / runs.SUMMARY_FILE).write_bytes(content)
    assert runs.read_summary(tmp_path) == {}


def test_events_that_cant_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / runs.EVENTS_FILE).mkdir()
    with pytest.raises(RequestError, match=r"can't write .*events\.jsonl"):
        runs.EventLog(tmp_path)


def test_a_torn_timeline_doesnt_spoil_the_others(tmp_path: Path) -> None:
    (tmp_path / "timeline-rank-0.json").write_text('[{"ts": 1')
    (tmp_path / "timeline-rank-1.json").write_text('[{"ts": 1}]')
    runs.merge_timelines(tmp_path, {})
    assert json.loads((tmp_path / runs.TIMELINE_FILE).read_text()) == {"traceEvents": [{"ts": 1.0}]}


def test_events_after_a_torn_line_are_whole(tmp_path: Path) -> None:
    log = runs.EventLog(tmp_path)
    log.write(LogEvent("one"))
    log.close()
    path = tmp_path / runs.EVENTS_FILE
    path.write_bytes(path.read_bytes() + b'{"type":"LogEv')
    log = runs.EventLog(tmp_path)
    log.write(LogEvent("two"))
    log.close()
    events = [decode(line) for line in path.read_bytes().splitlines()]
    assert [event.text for event in events if isinstance(event, LogEvent)] == ["one", "two"]


def test_timelines_become_one(tmp_path: Path) -> None:
    runs.merge_timelines(tmp_path, {})
    assert not (tmp_path / runs.TIMELINE_FILE).exists()
    for rank in range(2):
        text = json.dumps({"traceEvents": [{"pid": rank, "name": "forward"}]})
        (tmp_path / f"timeline-rank-{rank}.json").write_text(text)
    runs.merge_timelines(tmp_path, {})
    merged = json.loads((tmp_path / runs.TIMELINE_FILE).read_text())
    assert [event["pid"] for event in merged["traceEvents"]] == [0, 1]


def test_timelines_are_put_on_one_clock(tmp_path):
    for rank in (0, 1):
        events = [
            {"name": "process_name", "ph": "M", "pid": rank},
            {"name": "step", "ph": "X", "pid": rank, "ts": 5e6 + 2e6 * rank, "dur": 1e6},
        ]
        (tmp_path / f"timeline-rank-{rank}.json").write_text(json.dumps({"traceEvents": events}))
    runs.merge_timelines(tmp_path, {1: 2.0})
    merged = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert [event.get("ts") for event in merged] == [None, 5e6, None, 5e6]
