"""One frame of the live view: the run as it is known now, laid out for a terminal's size."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mlrun.console import text
from mlrun.console.model import Run, Split, Worker
from mlrun.console.result import failure_place

DATA, COMPUTE, WAITING = ("▓", "yellow"), ("█", "green"), ("░", "red")
"""A character of its own for each share of a step, so that it reads without colour too."""
LEVEL_STYLES = {"warning": "yellow", "error": "red"}
MIN_WIDTH, MIN_HEIGHT = 60, 12
LOG_LINES = 4
"""Kept free for the log, however many ranks there are."""


def frame(run: Run, width: int, height: int, now: float) -> RenderableType:
    """The whole screen, at most ``height`` lines. ``now`` is seconds since the epoch."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    top = [*_head(run, width, now), Text(), *_tiles(run, width), Text()]
    failure = _failure(run, width, most=min(max(4, height // 3), height - len(top) - 3))
    room = height - len(top) - len(failure) - 2  # heading and legend of the workers
    ranks = max(1, min(len(run.workers), room - LOG_LINES))
    return Group(*top, *_workers(run, width, ranks), _legend(), *failure, *_log(run, room - ranks))


def last_frame(run: Run, width: int, now: float) -> RenderableType:
    """What stays above the prompt once the run is over."""
    width = max(width, MIN_WIDTH)
    rows = _workers(run, width, max(1, len(run.workers)))
    return Group(*_head(run, width, now), Text(), *_tiles(run, width), Text(), *rows, _legend())


def _head(run: Run, width: int, now: float) -> list[RenderableType]:
    phase = [run.phase or "starting"]
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
    return [title, _ends(_bar(done, width - 1 - len(figures), "cyan", left=" "), figures, width)]


def _ends(left: Text, right: Text, width: int) -> Text:
    left.truncate(max(width - len(right), 0), overflow="ellipsis")
    return Text.assemble(left, " " * max(width - len(left) - len(right), 0), right, no_wrap=True)


def _bar(share: float | None, width: int, style: str, left: str = "") -> Text:
    width = max(width, 1)
    full = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(left, ("█" * full, style), ("░" * (width - full), "bright_black"))


def _tiles(run: Run, width: int) -> list[RenderableType]:
    """Speed of all, loss, metrics: a figure and its course each."""
    tiles = [
        (f"{run.unit}/s", text.speed(run.speed), run.speeds, "cyan", 0.0),
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


def _workers(run: Run, width: int, most: int) -> list[RenderableType]:
    """A heading and a row for each rank, at most ``most`` lines of these."""
    known = sorted(run.workers.values(), key=lambda w: w.rank)
    if not known:
        return [Text(" waiting for the workers to start", style="dim")]
    shown = known if len(known) <= most else known[: most - 1]
    host = min(max(len(w.host or text.UNKNOWN) for w in known), 20 if width >= 100 else 11)
    host = max(host, 4)
    device = min(max(6, *(len(w.device or "") for w in known)), 20 if width >= 100 else 8)
    free = max(width - host - device - 44, 6)
    use, course = min(free * 3 // 10, 24), free * 3 // 10
    split = free - use - course
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "left", "left", "left", "left", "left"):
        table.add_column(justify=justify, no_wrap=True)
    titles = ("rank", "host", "device", "use", f"{f'{run.unit}/s':>8}", f"{'step':>8}")
    table.add_row(*(Text(title, style="dim") for title in titles))
    for worker in shown:
        table.add_row(
            Text(str(worker.rank), style="bold"),
            _cut(worker.host, host),
            _cut(worker.device, device),
            _use(run, worker, use),
            _speed(worker, course),
            _step(worker, split),
        )
    rows: list[RenderableType] = [table]
    if len(shown) < len(known):
        rows.append(Text(f" and {len(known) - len(shown)} more ranks", style="dim"))
    return rows


def _legend() -> Rule:
    parts = ((DATA, " data  "), (COMPUTE, " compute  "), (WAITING, " waiting"))
    title = Text.assemble(*(piece for mark, name in parts for piece in (mark, (name, "dim"))))
    return Rule(title, style="bright_black", align="right")


def _cut(value: str | None, width: int) -> Text:
    cell = Text(value or text.UNKNOWN, no_wrap=True)
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell


def _use(run: Run, worker: Worker, width: int) -> Text:
    what, percent = run.use(worker)
    told = Text(f" {text.percent(percent):>5}")
    return Text.assemble(
        (f"{what} ", "dim"), _bar(None if percent is None else percent / 100, width, "blue"), told
    )


def _speed(worker: Worker, width: int) -> Text:
    course = text.sparkline(worker.speeds, width, 0.0)
    return Text.assemble((f"{text.speed(worker.speed):>8}", "bold"), " ", (f"{course:<{width}}", "cyan"))


def _step(worker: Worker, width: int) -> Text:
    told = Text(f"{text.milliseconds(worker.split.total_ms if worker.split else None):>8}  ")
    if worker.state not in (None, "training"):
        return told.append(f"{worker.state}", style="dim")
    return told.append_text(_split(worker.split, width)) if worker.split else told


def _split(split: Split, width: int) -> Text:
    total = split.total_ms or 1.0
    data = round(split.data_ms / total * width)
    waiting = min(round(split.waiting_ms / total * width), width - data)
    shares = ((DATA, data), (COMPUTE, width - data - waiting), (WAITING, waiting))
    return Text.assemble(*((character * count, style) for (character, style), count in shares))


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
