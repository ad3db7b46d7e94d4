"""The charts of a report, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlrun.report.history import History, Series

_FEW = 8
"""So many lines can be told apart and have a legend."""
_POINTS = 600
"""Of a line; a chart is about as many pixels wide."""
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "svg.hashsalt": "mlrun",
}
_SPLIT_COLOURS = ("#e0a526", "#3a9a5b", "#d1495b")

Draw: TypeAlias = Callable[[Axes, History], None]


def svg(draw: Draw, told: History) -> str:
    """One chart as an ``<svg>`` element."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        draw(figure.subplots(), told)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def png(path: Path, told: History, title: str) -> None:
    """All charts as one picture."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(12.8, 7.2), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        for axes, draw in zip(figure.subplots(2, 2).flat, CHARTS, strict=True):
            draw(axes, told)
        figure.savefig(path, dpi=100)


def throughput(axes: Axes, told: History) -> None:
    unit = f"{told.run.unit}/s"
    axes.set(title=f"Throughput ({unit})", xlabel="seconds since the start")
    ranks = told.rank_speed
    lines = [(f"rank {rank}", series) for rank, series in sorted(ranks.items())]
    if len(ranks) > 1:
        _line(axes, told.speed, color="black", linewidth=1.8, label="all ranks")
    _lines(axes, lines)
    axes.set_ylim(bottom=0)


def use(axes: Axes, told: History) -> None:
    """Of the GPUs; of the processors where no GPU told anything."""
    gpu = any(host.gpu.y for host in told.hosts.values())
    axes.set(title=f"{'GPU' if gpu else 'CPU'} use (%)", xlabel="seconds since the start", ylim=(0, 102))
    _lines(axes, [(name, host.gpu if gpu else host.cpu) for name, host in sorted(told.hosts.items())])


def loss(axes: Axes, told: History) -> None:
    axes.set(title="Loss and metrics", xlabel="step")
    shares = {n: s for n, s in told.metrics.items() if "loss" not in n}
    losses = {n: s for n, s in told.metrics.items() if "loss" in n}
    _line(axes, told.loss, color="#7b4fa3", label="training loss")
    for name, series in losses.items():
        _line(axes, series, marker="o", linestyle="--", markersize=3, color="#b58bd6", label=name)
    handles, labels = axes.get_legend_handles_labels()
    if shares:
        right = axes.twinx()
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        for name, series in shares.items():
            _line(right, series, marker="o", markersize=3, color="#2b7bba", label=name)
        more = right.get_legend_handles_labels()
        handles, labels = [*handles, *more[0]], [*labels, *more[1]]
    _legend(axes, handles, labels)


def time_split(axes: Axes, told: History) -> None:
    axes.set(title="Where each rank's time went (%)", xlim=(0, 100))
    ranks = sorted(told.splits)
    names = [f"{rank}  {told.run.workers[rank].host or ''}" for rank in ranks]
    shares = [told.splits[rank].shares for rank in ranks]
    for part, (name, colour) in enumerate(zip(("data", "compute", "waiting"), _SPLIT_COLOURS, strict=True)):
        left = [sum(share[:part]) for share in shares]
        axes.barh(range(len(ranks)), [s[part] for s in shares], left=left, color=colour, label=name)
    few = len(ranks) <= 2 * _FEW
    axes.set_yticks(range(len(ranks)) if few else [], names if few else [])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _legend(axes, *axes.get_legend_handles_labels())


def _line(axes: Axes, series: Series, **style: Any) -> None:
    drawn = series.thinned(_POINTS)
    axes.plot(drawn.x, drawn.y, **style)


def _lines(axes: Axes, lines: Iterable[tuple[str, Series]]) -> None:
    lines = list(lines)
    few = len(lines) <= _FEW
    for name, series in lines:
        _line(axes, series, linewidth=1.2 if few else 0.5, alpha=0.9, label=name)
    if few and axes.get_legend_handles_labels()[0]:
        _legend(axes, *axes.get_legend_handles_labels())


def _legend(axes: Axes, handles: list[Any], labels: list[str]) -> None:
    """Below the chart, where it hides nothing."""
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=5)


CHARTS: tuple[Draw, ...] = (throughput, use, loss, time_split)
