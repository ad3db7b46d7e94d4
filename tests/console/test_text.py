import math

import pytest

from mlrun.console import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (0.98333, "0.9833"),
        (2.3026, "2.303"),
        (12345.6, "12,346"),
        (2.5e-5, "2.5e-05"),
    ],
)
def test_number(value, shown):
    assert text.number(value) == shown


def test_number_that_is_none():
    assert text.number(math.nan) == "nan"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "–"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (11100, "3:05:00")]
)
def test_duration(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (102_400_000, "102 MB"), (5e15, "5000 TB")],
)
def test_size(count, shown):
    assert text.size(count) == shown


def test_sparkline_spans_its_values():
    assert text.sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert text.sparkline([0, 0, 5, 9, 10, 10], 3) == "▁▆█"
    assert text.sparkline([math.nan, 5], 8) == "▄"
    assert text.sparkline([], 8) == ""


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mred\x1b[0m\n", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("10 %\r50 %\r100 %\r\n", "100 %"),
        ("bell\x07 and \x9b2J", "bell and 2J"),
        ("naïve café ▁▂", "naïve café ▁▂"),
    ],
)
def test_a_log_line_cannot_move_the_cursor(line, shown):
    assert text.clean(line) == shown
