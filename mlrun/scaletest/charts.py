"""The charts of a scale test, drawn with matplotlib: speed-up over workers, and speed over batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import rc_context
from matplotlib.axes import Axes
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
Draw: TypeAlias = Callable[[Axes, Sequence[dict[str, Any]]], None]

_COLOURS = ("#2f7de1", "#8e5bd0", "#3a9a5b", "#e0a526", "#d1495b")


def write(path: Path, draw: Draw, rows: Sequence[dict[str, Any]], title: str) -> str:
    """Draw a chart into ``path``.png and ``path``.svg; returns the text of the latter."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        draw(figure.subplots(), rows)
        figure.axes[0].set_title(title)
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def speed_up(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Groups of bars by number of workers, at equal distances; predicted ones dashed; ideal as a line."""
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
    axes.set(xlabel="workers", ylabel="relative speed-up")
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.margins(y=0.18)
    axes.legend(loc="upper left")


def by_batch(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """Speed over batch size, a line for each job and number of workers."""
    measured = [row for row in rows if row["job"] is not None]
    sizes = sorted({row["batch"] for row in measured})
    for index, (job, workers) in enumerate(dict.fromkeys((row["job"], row["workers"]) for row in measured)):
        own = [row for row in measured if (row["job"], row["workers"]) == (job, workers)]
        axes.plot(
            [sizes.index(row["batch"]) for row in own],
            [row["samples_per_second"] for row in own],
            "o-",
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{job}, {workers} worker{'s' if workers > 1 else ''}",
        )
    units = " or ".join(dict.fromkeys(f"{row['unit']}/s" for row in measured))
    axes.set(xlabel="batch size", ylabel=units)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    axes.legend()
