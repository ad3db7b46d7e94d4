"""The chart of a scale test: speed-up over the number of workers, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

_STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "svg.hashsalt": "mlrun",
}
_COLOURS = ("#2f7de1", "#8e5bd0", "#3a9a5b", "#e0a526", "#d1495b")


def png(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """The chart as a picture."""
    with rc_context(_STYLE):
        _figure(rows, title).savefig(path, dpi=150)


def svg(rows: Sequence[dict[str, Any]], title: str) -> str:
    """The chart as the text of an SVG file."""
    out = io.StringIO()
    with rc_context(_STYLE):
        _figure(rows, title).savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _figure(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Groups of bars by number of workers, at equal distances; predicted ones dashed; ideal as a line."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    counts = sorted({row["workers"] for row in rows})
    names = list(dict.fromkeys(row["series"] for row in rows))
    width = 0.7 / max(1, len(names))
    for row in rows:
        series = names.index(row["series"])
        x = counts.index(row["workers"]) + (series - (len(names) - 1) / 2) * width
        foretold = row["kind"] == "predicted"
        colour = _COLOURS[series % len(_COLOURS)]
        error = row["spread"] * row["speed_up"] / row["samples_per_second"] if row["spread"] else None
        axes.bar(
            x,
            row["speed_up"],
            width * 0.92,
            yerr=error,
            capsize=4,
            color="none" if foretold else colour,
            edgecolor=colour,
            linestyle="--" if foretold else "-",
        )
        label = f"{row['speed_up']:.2f}×\n{row['samples_per_second']:,.0f} {row['unit']}/s"
        label += "\npredicted" if foretold else ""
        axes.annotate(
            label,
            (x, row["speed_up"]),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes.plot(range(len(counts)), counts, "o--", color="#8a8a8e", label="ideal", zorder=0)
    for index, name in enumerate(names):
        axes.bar(0, 0, color=_COLOURS[index % len(_COLOURS)], label=name)
    axes.set(title=title, xlabel="workers", ylabel="relative speed-up")
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.margins(y=0.18)
    axes.legend(loc="upper left")
    return figure
