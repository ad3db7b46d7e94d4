"""One frame of the live view: the run as it is known now, laid out for a terminal's size."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from mlrun.console import text
from mlrun.console.findings import Finding, findings
from mlrun.console.model import Run
from mlrun.console.result import failure_place
from mlrun.console.rows import COMPUTE, DATA, MARK, WAITING, bar, rows

LEVEL_STYLES = {"warning": "yellow", "error": "red"}
MIN_WIDTH, MIN_HEIGHT = 60, 12
LOG_LINES = 4
"""Kept free for the log, however many ranks there are."""
FINDING_LINES = 4


def frame(run: Run, width: int, height: int, now: float) -> RenderableType:
    """The whole screen, at most ``height`` lines. ``now`` is seconds since the epoch."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    top = [*_head(run, width, now), Text(), *_tiles(run, width), Text()]
    failure = _failure(run, width, most=min(max(4, height // 3), height - len(top) - 3))
    found = [] if failure else findings(run)
    room = height - len(top) - len(failure) - 2  # heading and legend of the workers
    told = _told(found, width, most=max(0, min(FINDING_LINES, room - LOG_LINES - 1)))
    room -= len(told)
    marked = {finding.rank for finding in found if finding.rank is not None}
    ranks = rows(run, width, max(1, room - LOG_LINES), marked)
    return Group(*top, *ranks, _legend(), *told, *failure, *_log(run, room + 1 - len(ranks)))


def last_frame(run: Run, width: int, now: float) -> RenderableType:
    """What stays above the prompt once the run is over."""
    width = max(width, MIN_WIDTH)
    ranks = rows(run, width, max(1, len(run.workers)), ())
    return Group(*_head(run, width, now), Text(), *_tiles(run, width), Text(), *ranks, _legend())


def _head(run: Run, width: int, now: float) -> list[RenderableType]:
    phase = [run.phase or "starting", *(["simulated"] if run.simulated else [])]
    if run.epoch is not None:
        epochs = "" if run.epochs is None else f"/{run.epochs}"
        phase.append(f"epoch {run.epoch + 1}{epochs}")
    elapsed = None if run.started is None else max(now, run.latest or 0) - run.started
    title = _ends(
        Text.assemble(" ", (run.name or "mlrun", "bold cyan"), ("  " + " · ".join(phase), "dim")),
        Text(f"{text.duration(elapsed)} "),
        width,
    )
    done = run.step / run.steps_total if run.step is not None and run.steps_total else None
    count = text.UNKNOWN if run.step is None else f"{run.step:,}"
    total = f"/{run.steps_total:,}" if run.steps_total else ""
    share = text.percent(None if done is None else 100 * done)
    left = "" if run.summary is not None else f"   {text.duration(run.eta_s)} left"
    figures = Text(f" step {count}{total} {share:>6}{left} ")
    return [title, _ends(Text.assemble(" ", bar(done, width - 1 - len(figures), "cyan")), figures, width)]


def _ends(left: Text, right: Text, width: int) -> Text:
    left.truncate(max(width - len(right), 0), overflow="ellipsis")
    return Text.assemble(left, " " * max(width - len(left) - len(right), 0), right, no_wrap=True)


def _tiles(run: Run, width: int) -> list[RenderableType]:
    """Speed of all, loss, metrics: a figure and its course each."""
    tiles = [
        (f"{run.unit}/s", text.speed(run.speed) + text.speed_up(run.speed_up), run.speeds, "cyan", 0.0),
        ("loss", text.number(run.loss), run.losses, "magenta", None),
        *((n, text.number(v), run.metric_history.get(n, ()), "green", None) for n, v in run.metrics.items()),
    ]
    most = max(2, (width - 1) // 24)
    column = (width - 1) // min(len(tiles), most)
    figures, courses = Text(" ", no_wrap=True), Text(" ", no_wrap=True)
    for name, value, values, style, floor in tiles[:most]:
        figure = Text.assemble((f"{name} ", "dim"), (value, f"bold {style}"))
        figure.truncate(column - 2, overflow="ellipsis", pad=True)
        figures.append_text(figure).append("  ")
        courses.append(f"{text.sparkline(values, column - 2, floor):<{column}}", style=style)
    return [figures, courses]


def _legend() -> Rule:
    parts = ((DATA, " data  "), (COMPUTE, " compute  "), (WAITING, " waiting"))
    title = Text.assemble(*(piece for mark, name in parts for piece in (mark, (name, "dim"))))
    return Rule(title, style="bright_black", align="right")


def _told(found: list[Finding], width: int, most: int) -> list[Text]:
    shown = found[:most]
    lines = [Text.assemble(" ", MARK, " ", (finding.text, "yellow"), no_wrap=True) for finding in shown]
    if lines and len(found) > most:
        lines[-1].append(f"  and {len(found) - most} more", style="dim")
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return lines


def _failure(run: Run, width: int, most: int) -> list[RenderableType]:
    cause = run.cause or (run.failures[0] if run.failures else None)
    if cause is None:
        return []
    message = text.clean(cause.message.partition("\n")[0])
    lines = [Text.assemble(" ", (f"{failure_place(cause)}: ", "bold red"), (message, "red"))]
    quoted = cause.last_lines[-(most - 3) :] if most > 3 else []
    lines += [Text.assemble((" │ ", "red"), text.clean(line)) for line in quoted]
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return [Rule("failed", style="red", align="left"), *lines, Text()]


def _log(run: Run, most: int) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for event in list(run.logs)[-most:] if most > 0 else []:
        where = (event.host or "mlrun") if event.rank is None else f"rank {event.rank}"
        told = (text.clean(event.text), LEVEL_STYLES.get(event.level, ""))
        lines.append(Text.assemble((f" {where:<8}", "dim"), told, no_wrap=True, overflow="ellipsis"))
    return lines
