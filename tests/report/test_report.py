"""``mlrun report`` on recorded runs."""

import html.parser
import re
import runpy
import struct
from pathlib import Path

import pytest

from mlrun.errors import RequestError
from mlrun.report.history import Series, history
from mlrun.report.page import write_report
from mlrun.wire import encode

training = runpy.run_path(str(Path(__file__).parents[1] / "console" / "replay.py"))["training"]


class Page(html.parser.HTMLParser):
    """What a page shows, what it draws and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.charts = 0
        self.loads: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.charts += tag == "svg"
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith("#")]

    def handle_data(self, data):
        if self._inside in ("td", "th"):
            self.cells.append(data)


def report(tmp_path: Path, events) -> tuple[Path, Path]:
    run = tmp_path / "resnet-1"
    run.mkdir()
    (run / "events.jsonl").write_bytes(b"".join(map(encode, events)))
    return write_report(run)


def test_a_page_with_every_rank_that_loads_nothing(tmp_path):
    page_path, _ = report(tmp_path, training(3, 20))
    text = page_path.read_text()
    page = Page(text)
    assert page.charts == 4
    assert page.loads == []
    assert "<script" not in text
    assert {"mac-1", "mac-2", "mac-3", "heavy, nominal"} <= set(page.cells)
    assert re.search(r"done after 0:22, 3 ranks on 3 hosts", text)


def test_a_picture_of_a_page_of_width(tmp_path):
    _, picture = report(tmp_path, training(2, 10))
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) == (1280, 720)


def test_a_failed_run_says_why_and_nothing_in_it_is_markup(tmp_path):
    page_path, _ = report(tmp_path, training(2, 10, fails_at=4))
    assert "rank 1 on mac-2, step 32: killed by SIGKILL" in page_path.read_text()
    assert "File &quot;train.py&quot;, line 12" in page_path.read_text()


def test_a_run_that_told_nothing_but_its_start(tmp_path):
    page_path, _ = report(tmp_path, list(training(2, 5))[:1])
    assert Page(page_path.read_text()).charts == 4


def test_no_events_no_report(tmp_path):
    with pytest.raises(RequestError, match=r"has no events\.jsonl"):
        write_report(tmp_path)


def test_the_course_of_a_run():
    told = history(training(2, 20))
    assert told.speed.y[-1] == pytest.approx(1024)
    assert told.loss.y[0] > told.loss.y[-1]
    assert told.metrics["accuracy"].x == [40, 80, 120, 160]
    assert sum(told.splits[1].shares) == pytest.approx(100)
    assert told.splits[1].waiting < told.splits[0].waiting
    assert told.hosts["mac-2"].thermal == {"nominal", "heavy"}
    assert told.hosts["mac-1"].watts.mean == pytest.approx(0.4 * told.hosts["mac-1"].gpu.mean)


def test_a_long_series_is_thinned_to_means():
    series = Series([float(i) for i in range(1000)], [float(i % 2) for i in range(1000)])
    thinned = series.thinned(100)
    assert thinned.x[:2] == [4.5, 14.5]
    assert thinned.y == [0.5] * 100
    assert series.thinned(1000) is series
