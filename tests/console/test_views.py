"""The views through ``open_console``, on real streams: files, pipes and a pseudo-terminal."""

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console as Terminal

from mlrun.console import open_console
from mlrun.console.frame import frame, last_frame
from mlrun.console.model import Run
from mlrun.errors import RequestError
from mlrun.protocol import (
    FailureEvent,
    LogEvent,
    StateEvent,
    SummaryEvent,
)
from mlrun.wire import decode, encode

REPLAY = Path(__file__).with_name("replay.py")


def shown(kind, events):
    stream = io.StringIO()
    with open_console(kind, stream=stream) as console:
        for event in events:
            console.show(event)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _no_forced_colours(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_json_is_the_stream_itself(training):
    events = list(training(2, 5))
    lines = shown("json", events).splitlines()
    assert [decode(line) for line in lines] == events
    assert lines[0].encode() + b"\n" == encode(events[0])


def test_plain_ends_with_the_result(training):
    out = shown("plain", training(2, 12))
    assert "\x1b" not in out
    assert "mac-2 | warning: mac-2 runs hot" in out
    assert "step 40   accuracy" in out
    end = out[out.index("\ndone  resnet") :]
    for part in (
        "accuracy 0.9552",
        "1,024   rank 0 512.0   rank 1 512.0",
        "equal on all 2 ranks",
        "runs/resnet-",
    ):
        assert part in end
    assert "mlrun resume resnet-20231114-221320" in end


def test_plain_names_the_first_cause_then_the_consequences(training):
    out = shown("plain", training(3, 10, fails_at=4))
    end = out[out.index("\nfailed  resnet") :]
    cause = end.index("rank 2 on mac-3, step 32: killed by SIGKILL")
    assert cause < end.index("MemoryError") < end.index("consequences") < end.index("rank 0 on mac-1")


def test_one_mistake_on_every_rank_is_told_once():
    text = "data.path: there is no folder data\n  Fix: correct data.path"
    events = [
        StateEvent("starting", {"name": "job", "world_size": 3, "run_dir": "runs/job-1"}, time=1.0),
        FailureEvent("refused", text, last_lines=text.splitlines(), time=2.0, rank=1, host="mac"),
        *(FailureEvent("refused", text, consequence=True, time=2.0, rank=r, host="mac") for r in (0, 2)),
    ]
    out = shown("plain", events)
    end = out[out.index("\nfailed  job") :]
    assert end.count("there is no folder data") == 1
    assert "the same: rank 0 on mac, rank 2 on mac" in end
    assert "consequences" not in end


def test_a_complete_run_goes_on_with_more_steps():
    summary = {
        "name": "job",
        "status": "done",
        "reason": "complete",
        "step": 40,
        "checkpoint": "runs/job-1/c",
    }
    started = StateEvent("starting", {"name": "job", "world_size": 1, "run_dir": "runs/job-1"}, time=1.0)

    def end(**changes):
        return shown("plain", [started, SummaryEvent({**summary, **changes}, time=2.0)])

    assert "mlrun resume job-1 --set steps=80\n" in end()
    assert "mlrun resume job-1\n" in end(status="stopped", reason="stopped")


def test_plain_warns_of_who_holds_the_others_back(training):
    out = shown("plain", training(3, 30))
    assert out.count("rank 1 (mac-2) is ") == 1
    assert "slower: thermal pressure (heavy)" in out
    assert out.count("mac-3 → mac-1 runs over Wi-Fi") == 1


def test_the_figures_of_a_host_stand_in_its_row(training):
    run = Run()
    for event in list(training(4, 20))[:-1]:
        run.apply(event)
    for width, height in ((80, 24), (200, 50)):
        terminal = Terminal(file=io.StringIO(), width=width, height=height)
        terminal.print(frame(run, width, height, now=0.0))
        text = terminal.file.getvalue()
        for part in ("▲    1  mac-2", "6.0 GB", " W", "heavy", "→2 Thunderbolt 840 MB/s", "thermal pressure"):
            assert part in text, (width, part)


def test_of_many_hosts_the_worst_come_first_and_the_rest_is_summed_up(training):
    run = Run()
    for event in list(training(64, 20))[:-1]:
        run.apply(event)
    terminal = Terminal(file=io.StringIO(), width=200, height=50)
    terminal.print(frame(run, 200, 50, now=0.0))
    lines = terminal.file.getvalue().splitlines()
    assert len(lines) <= 50
    heading = next(place for place, line in enumerate(lines) if line.startswith("  rank  host"))
    assert lines[heading + 1].startswith("▲    1  mac-2 ")
    assert lines[heading + 2].startswith("▲   63  mac-64 ")
    assert any("more ranks, 512.0 images/s each, GPU " in line for line in lines)


def test_live_without_a_terminal_is_plain(training):
    assert shown("live", training(1, 2)) == shown("plain", training(1, 2))


def test_off_is_silent_but_for_errors(training):
    assert shown("off", training(2, 5)) == ""
    assert "killed by SIGKILL" in shown("off", training(2, 5, fails_at=3))


def test_markup_in_a_log_line_is_text():
    assert "[red]not red[/]" in shown("plain", [LogEvent("[red]not red[/]")])


def test_an_unknown_view_is_refused():
    with pytest.raises(RequestError, match="no console 'pretty'"):
        open_console("pretty")


def test_a_reader_that_leaves_does_not_end_the_run(training):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, open_console("json", stream=stream) as console:
        for event in training(2, 3):
            console.show(event)


def test_a_frame_before_any_event():
    terminal = Terminal(file=io.StringIO(), width=80, height=24)
    assert len(terminal.render_lines(frame(Run(), 80, 24, now=0.0))) <= 24


@pytest.mark.parametrize("fails_at", [None, 9])
@pytest.mark.parametrize("ranks", [1, 4, 40])
@pytest.mark.parametrize(("width", "height"), [(60, 12), (80, 24), (200, 50)])
def test_a_frame_fits_its_terminal(training, width, height, ranks, fails_at):
    run = Run()
    for event in list(training(ranks, 15, fails_at))[:-1]:
        run.apply(event)
    terminal = Terminal(file=io.StringIO(), width=width, height=height)
    lines = terminal.render_lines(frame(run, width, height, now=0.0), pad=False)
    assert len(lines) <= height
    assert max(sum(piece.cell_length for piece in line) for line in lines) <= width
    text = "\n".join("".join(piece.text for piece in line) for line in lines)
    assert ("killed by SIGKILL" in text) == (fails_at is not None)
    assert terminal.render_lines(last_frame(run, width, now=0.0))


def on_terminal(*arguments, **environment):
    """What a program writes to a pseudo-terminal of 80 × 24, and its exit code."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment}
    program = subprocess.Popen(
        [sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=env, close_fds=True
    )
    os.close(theirs)
    output = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's answer once the other side is closed
                return
            if not piece:
                return
            output.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    code = program.wait(timeout=60)
    reader.join(timeout=10)
    os.close(ours)
    return output.decode(), code


ENTER, LEAVE, HIDE_CURSOR, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


def test_live_leaves_the_terminal_as_it_was():
    out, code = on_terminal(str(REPLAY), "live", "--ranks", "2", "--seconds", "1")
    assert code == 0, out
    assert out.count(ENTER) == out.count(LEAVE) == 1
    assert out.rindex(SHOW_CURSOR) > out.rindex(HIDE_CURSOR)
    assert "resnet" in out[: out.index(LEAVE)]
    assert "equal on all 2 ranks" in out[out.index(LEAVE) :]


def test_live_leaves_the_terminal_as_it_was_after_an_exception():
    program = """
from mlrun.console import open_console
from mlrun.protocol import LogEvent
with open_console("live") as console:
    console.show(LogEvent("begun"))
    raise ValueError("seen")
"""
    out, code = on_terminal("-c", program)
    assert code == 1
    after = out[out.index(LEAVE) :]
    assert "ValueError: seen" in after
    assert SHOW_CURSOR in out[out.rindex(HIDE_CURSOR) :]


def test_live_leaves_the_screen_alone_before_the_first_event():
    program = "from mlrun.console import open_console\nopen_console('live')\nraise ValueError('seen')"
    out, code = on_terminal("-c", program)
    assert code == 1
    assert ENTER not in out
    assert "ValueError: seen" in out


def test_live_obeys_no_color():
    out, code = on_terminal(str(REPLAY), "live", "--ranks", "1", "--seconds", "1", NO_COLOR="1")
    assert code == 0, out
    assert "\x1b[36m" not in out
    assert "\x1b[32m" not in out
