"""The rows of the live view: one for each rank, as wide and as detailed as there is room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from mlrun.console import text
from mlrun.console.findings import LINK_NAMES
from mlrun.console.model import Run, Split, Worker

DATA, COMPUTE, WAITING = ("▓", "yellow"), ("█", "green"), ("░", "red")
"""A character of its own for each share of a step, so that it reads without colour too."""
MARK = ("▲", "bold red")
"""Of a rank that a finding names."""
WIDE = 150
"""From this width on, the host's figures have columns of their own."""
_GAP = "  "


def bar(share: float | None, width: int, style: str) -> Text:
    width = max(width, 1)
    full = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("█" * full, style), ("░" * (width - full), "bright_black"))


def rows(run: Run, width: int, most: int, marked: Collection[int]) -> list[Text]:
    """A heading and at most ``most`` lines. Where not all ranks fit, the worst are shown."""
    known = sorted(run.workers.values(), key=lambda w: w.rank)
    if not known:
        return [Text(" waiting for the workers to start", style="dim")]
    shown = known if len(known) <= most else sorted(known, key=_worst_first(marked))[: most - 1]
    columns = _wide(run, known, width) if width >= WIDE else _narrow(run, known, width)
    heading = Text(no_wrap=True)
    for column in columns:
        title = column.title[: column.width]
        heading.append(f"{title:>{column.width}}" if column.right else f"{title:<{column.width}}", "dim")
        heading.append(_GAP)
    lines = [Text.assemble(_GAP, heading)]
    details = {w.rank: _details(run, w, width) for w in known}
    detailed = (
        width < WIDE and 2 * len(known) <= most and any(line.plain.strip() for line in details.values())
    )
    for worker in shown:
        lines.append(_row(worker, columns, worker.rank in marked))
        if detailed:
            lines.append(details[worker.rank])
    if len(shown) < len(known):
        rest = [w for w in known if w not in shown]
        lines.append(Text(f"  and {_rest(run, rest)}", style="dim", no_wrap=True))
    return lines


def _worst_first(marked: Collection[int]) -> Callable[[Worker], tuple[bool, float, int]]:
    """Of those that no finding names, who needs most time of its own; who hasn't told comes before."""
    return lambda w: (w.rank not in marked, -w.split.own_ms if w.split else float("-inf"), w.rank)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[Worker], Text | str]
    right: bool = False


def _row(worker: Worker, columns: Sequence[_Column], marked: bool) -> Text:
    line = Text(no_wrap=True)
    line.append(*MARK) if marked else line.append(" ")
    line.append(" ")
    for column in columns:
        cell = column.cell(worker)
        cell = cell if isinstance(cell, Text) else Text(cell)
        cell.truncate(column.width, overflow="ellipsis")
        room = " " * (column.width - cell.cell_len)
        line.append_text(Text.assemble(room, cell) if column.right else Text.assemble(cell, room))
        line.append(_GAP)
    line.rstrip()
    return line


def _narrow(run: Run, known: list[Worker], width: int) -> list[_Column]:
    host = min(max(4, *(len(w.host or text.UNKNOWN) for w in known)), 16 if width >= 100 else 11)
    free = max(width - host - 42, 18)
    use, course = min(free * 3 // 10, 24), free * 3 // 10
    return _first(host) + _figures(run, use, course, free - use - course)


def _wide(run: Run, known: list[Worker], width: int) -> list[_Column]:
    host = min(max(4, *(len(w.host or text.UNKNOWN) for w in known)), 20)
    chip = min(max(6, *(len(_chip(run, w)) for w in known)), 18)
    free = max(width - host - chip - 107, 18)
    use, course = min(free // 4, 24), free * 3 // 8
    return [
        *_first(host),
        _Column("device", chip, lambda w: _chip(run, w)),
        *_figures(run, use, course, free - use - course),
        _Column("memory", 7, lambda w: _size(run.of_host(w).gpu_memory_bytes), right=True),
        _Column("power", 6, lambda w: _watts(run.of_host(w).gpu_watts), right=True),
        _Column("per W", 5, lambda w: text.number(run.per_watt(w), 3), right=True),
        _Column("thermal", 9, lambda w: _thermal(run.of_host(w).thermal)),
        _Column("to the next rank", 24, lambda w: _link(run, w)),
    ]


def _first(host: int) -> list[_Column]:
    return [
        _Column("rank", 4, lambda w: Text(str(w.rank), style="bold"), right=True),
        _Column("host", host, lambda w: w.host or text.UNKNOWN),
    ]


def _figures(run: Run, use: int, course: int, split: int) -> list[_Column]:
    return [
        _Column("use", use + 10, lambda w: _use(run, w, use)),
        _Column(f"{f'{run.unit}/s':>8}", course + 9, lambda w: _speed(w, course)),
        _Column(f"{'step':>8}", split + 10, lambda w: _step(w, split)),
    ]


def _use(run: Run, worker: Worker, width: int) -> Text:
    what, percent = run.use(worker)
    told = Text(f" {text.percent(percent):>5}")
    return Text.assemble(
        (f"{what} ", "dim"), bar(None if percent is None else percent / 100, width, "blue"), told
    )


def _speed(worker: Worker, width: int) -> Text:
    course = text.sparkline(worker.speeds, width, 0.0)
    return Text.assemble((f"{text.speed(worker.speed):>8}", "bold"), " ", (course, "cyan"))


def _step(worker: Worker, width: int) -> Text:
    told = Text(f"{text.milliseconds(worker.split.total_ms if worker.split else None):>8}  ")
    if worker.state not in (None, "training"):
        return told.append(f"{worker.state}", style="bold red" if worker.state == "stopped" else "dim")
    return told.append_text(_split(worker.split, width)) if worker.split else told


def _split(split: Split, width: int) -> Text:
    total = split.total_ms or 1.0
    data = round(split.data_ms / total * width)
    waiting = min(round(split.waiting_ms / total * width), width - data)
    shares = ((DATA, data), (COMPUTE, width - data - waiting), (WAITING, waiting))
    return Text.assemble(*((character * count, style) for (character, style), count in shares))


def _details(run: Run, worker: Worker, width: int) -> Text:
    """The second line of a rank: what is known of its host, and nothing else."""
    line = Text(" " * 6, no_wrap=True)
    line.append_text(Text(" · ").join(_known(run, worker)))
    line.stylize("dim")
    line.truncate(width - 1, overflow="ellipsis")
    return line


def _known(run: Run, worker: Worker) -> Iterator[Text]:
    told, per_watt, link = run.of_host(worker), run.per_watt(worker), run.next_link(worker)
    if told.gpu_memory_bytes is not None:
        yield Text(text.size(told.gpu_memory_bytes))
    if told.gpu_watts is not None:
        yield Text(_watts(told.gpu_watts))
    if per_watt is not None:
        yield Text(f"{text.number(per_watt, 3)} {run.unit}/s per W")
    if told.thermal not in (None, "nominal"):
        yield _thermal(told.thermal)
    if told.power == "battery":
        yield Text(f"battery {text.percent(told.battery_percent)}")
    if told.low_power:
        yield Text("low power mode")
    if link is not None and link[1].rate is not None:
        yield _link(run, worker)
    if told.chip is not None:
        yield Text(told.chip)


def _chip(run: Run, worker: Worker) -> str:
    if worker.device is not None and worker.device.lower().startswith("cpu"):
        return worker.device
    return run.of_host(worker).chip or worker.device or text.UNKNOWN


def _thermal(state: str | None) -> Text:
    return Text(state or text.UNKNOWN, style="" if state in (None, "nominal") else "yellow")


def _link(run: Run, worker: Worker) -> Text:
    found = run.next_link(worker)
    if found is None:
        return Text(text.UNKNOWN)
    peer, link = found
    kind = "" if link.kind is None else f"{LINK_NAMES.get(link.kind, link.kind)} "
    rate = text.UNKNOWN if link.rate is None else f"{text.size(link.rate)}/s"
    return Text(f"→{peer} {kind}{rate}", style="yellow" if link.kind == "wifi" else "")


def _rest(run: Run, rest: list[Worker]) -> str:
    speeds = [w.speed for w in rest if w.speed is not None]
    told = [f"{len(rest)} more ranks"]
    if speeds:
        low, high = text.speed(min(speeds)), text.speed(max(speeds))
        told.append(f"{low if low == high else f'{low} to {high}'} {run.unit}/s each")
    uses = [run.use(w) for w in rest]
    known = [percent for _, percent in uses if percent is not None]
    if known:
        told.append(f"{uses[0][0]} {min(known):.0f} to {text.percent(max(known))}")
    return ", ".join(told)


def _size(count: int | None) -> str:
    return text.UNKNOWN if count is None else text.size(count)


def _watts(value: float | None) -> str:
    return text.UNKNOWN if value is None else f"{text.number(value, 3 if value < 100 else 4)} W"
