"""What a scale test leaves behind: scale.json, scale.csv, charts, one page; and lines for the terminal."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlrun.errors import RefusedError
from mlrun.runs import write_atomically
from mlrun.scaletest import explain
from mlrun.scaletest.measure import Point

JSON_FILE, CSV_FILE, PAGE_FILE = "scale.json", "scale.csv", "report.html"
_BAR = 40
_COLUMNS = (
    "series",
    "workers",
    "unit",
    "kind",
    "samples_per_second",
    "spread",
    "speed_up",
    "efficiency",
    "step_s",
    "compute_s",
    "exposed_s",
    "per_watt",
)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A point of the chart that nobody measured."""

    series: str
    workers: int
    unit: str
    speed: float
    speed_up: float
    efficiency: float
    step_s: float
    compute_s: float
    exposed_s: float
    words: str


@dataclass(slots=True)
class Results:
    """All that is known so far."""

    points: list[Point]
    predicted: list[Predicted]
    complete: bool = False

    @property
    def simulated(self) -> bool:
        return any(point.simulated for point in self.points)


def rows(results: Results) -> list[dict[str, Any]]:
    """A row per point, as in scale.json and scale.csv. Seconds, samples per second; unknown is None."""
    points = results.points
    measured = [
        {
            "series": point.series,
            "job": point.job,
            "batch": point.batch,
            "workers": point.workers,
            "unit": point.unit,
            "kind": "simulated" if point.simulated else "measured",
            "samples_per_second": point.speed,
            "spread": point.spread,
            "speed_up": explain.speed_up(points, point),
            "efficiency": explain.measured_efficiency(points, point),
            "step_s": point.step_s,
            "compute_s": point.compute_s,
            "exposed_s": point.exposed_s,
            "per_watt": point.speed / point.watts if point.watts else None,
            "explanation": explain.explain(point),
            "warning": explain.shared_cores(point),
            "global_batch": point.global_batch,
            "speeds": point.speeds,
            "ranks": [asdict(rank) for rank in point.ranks],
        }
        for point in points
    ]
    foretold = [
        {
            "series": each.series,
            "job": None,
            "batch": None,
            "workers": each.workers,
            "unit": each.unit,
            "kind": "predicted",
            "samples_per_second": each.speed,
            "spread": None,
            "speed_up": each.speed_up,
            "efficiency": each.efficiency,
            "step_s": each.step_s,
            "compute_s": each.compute_s,
            "exposed_s": each.exposed_s,
            "per_watt": None,
            "explanation": each.words,
            "warning": None,
        }
        for each in results.predicted
    ]
    return measured + foretold


def document(results: Results) -> str:
    """The text of scale.json."""
    content = {"complete": results.complete, "points": rows(results)}
    return json.dumps(content, indent=2) + "\n"


def write_tables(results: Results, folder: Path) -> None:
    """Write scale.json and scale.csv; after every point, so that a stopped test leaves what it has."""
    write_atomically(folder / JSON_FILE, document(results))
    out = io.StringIO()
    table = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows(results))
    write_atomically(folder / CSV_FILE, out.getvalue())


def write_charts(results: Results, folder: Path) -> None:
    """Write scale.png, scale.svg and report.html; with several batch sizes batches.png and batches.svg too.

    Raises:
        RefusedError: matplotlib isn't installed.
    """
    try:
        from mlrun.scaletest import charts  # noqa: PLC0415 - an extra that only this needs
    except ImportError as error:
        raise RefusedError(
            "charts need matplotlib, which isn't installed", fix="pip install 'mlrun-ring[report]'"
        ) from error
    told = rows(results)
    figures = {"scale": charts.speed_up}
    if any(row["series"] != row["job"] for row in told if row["job"] is not None):
        figures["batches"] = charts.by_batch
    drawn = {name: charts.write(folder / name, draw, told, title(results)) for name, draw in figures.items()}
    write_atomically(folder / PAGE_FILE, _page(results, told, list(drawn.values())))


def title(results: Results) -> str:
    names = " and ".join(dict.fromkeys(point.job for point in results.points))
    return f"Scaling of {names}{' (simulated)' if results.simulated else ''}"


def lines(results: Results) -> list[str]:
    """The terminal's chart: a bar per point, and what there is to say of it."""
    told = rows(results)
    most = max((row["speed_up"] for row in told), default=1.0)
    out = [title(results)]
    for row in told:
        bar = "█" * max(1, round(_BAR * row["speed_up"] / most))
        spread = f" ± {row['spread']:,.1f}" if row["spread"] is not None else ""
        out.append(
            f"{row['workers']:4d} {bar:{_BAR}} {row['speed_up']:.2f}×  {row['efficiency']:.1%}  "
            f"{row['samples_per_second']:,.1f}{spread} {row['unit']}/s  {row['series']} ({row['kind']})"
        )
        out += [f"     {text}" for text in (row["explanation"], row["warning"]) if text]
    return out


def _page(results: Results, told: Sequence[dict[str, Any]], drawn: Sequence[str]) -> str:
    head = ("Series", "Workers", "Kind", "Speed", "Speed-up", "Efficiency", "Step", "Exposed")
    body = "\n".join(
        "<tr>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row))
        + f'</tr>\n<tr class="why"><td colspan="{len(head)}">{html.escape(_why(row))}</td></tr>'
        for row in told
    )
    partly = "" if results.complete else "<p><b>The test was stopped: this is what it had measured.</b></p>"
    simulated = (
        "<p><b>Simulated:</b> the workers sleep instead of computing. What travels between them is real.</p>"
        if results.simulated
        else ""
    )
    heading = html.escape(title(results))
    pictures = "\n".join(svg[svg.index("<svg") :] for svg in drawn)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1d1d1f; background: #fff;
       max-width: 960px; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .3rem .6rem; }}
.why td {{ color: #666; padding-top: 0; border-bottom: 1px solid #e5e5ea; }}
</style></head>
<body>
<h1>{heading}</h1>
{partly}{simulated}
<p>Speed-up is speed over that of one worker.
Efficiency is speed-up over workers. Exposed is communication during which nothing was computed.</p>
{pictures}
<table><thead><tr>{"".join(f"<th>{html.escape(name)}</th>" for name in head)}</tr></thead><tbody>
{body}
</tbody></table>
</body></html>
"""


def _cells(row: dict[str, Any]) -> list[str]:
    spread = f" ± {row['spread']:,.1f}" if row["spread"] is not None else ""
    return [
        row["series"],
        str(row["workers"]),
        row["kind"],
        f"{row['samples_per_second']:,.1f}{spread} {row['unit']}/s",
        f"{row['speed_up']:.2f}×",
        f"{row['efficiency']:.1%}",
        f"{row['step_s'] * 1e3:,.0f} ms",
        f"{row['exposed_s'] * 1e3:,.0f} ms",
    ]


def _why(row: dict[str, Any]) -> str:
    return ". ".join(text for text in (row["explanation"], row["warning"]) if text)
