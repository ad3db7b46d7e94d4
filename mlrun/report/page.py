"""One HTML page that needs nothing else: no script, no style sheet, no picture from elsewhere."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from pathlib import Path

from mlrun import runs
from mlrun.console import text
from mlrun.console.result import failure_place
from mlrun.errors import RefusedError
from mlrun.report.history import History, Host, history

PAGE_FILE, PICTURE_FILE = "report.html", "report.png"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d1d1f; background: #fff;
       max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.status { color: #666; margin: 0 0 1.5rem; } .failed { color: #b3261e; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1rem; }
.tile { background: #f5f5f7; border-radius: 10px; padding: .7rem 1rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { color: #666; font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem;
          margin-top: 1.5rem; }
.charts svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #e5e5ea; }
th { color: #666; font-weight: 500; } th.left, td.left { text-align: left; }
pre { background: #fdf1f0; padding: .7rem 1rem; border-radius: 10px; overflow-x: auto; }
"""


def write_report(run_dir: Path) -> tuple[Path, Path]:
    """Write page and picture into the run folder, and return their paths.

    Raises:
        RequestError: the run has no events.
        RefusedError: matplotlib isn't installed.
    """
    try:
        from mlrun.report import charts  # noqa: PLC0415 - an extra that only this needs
    except ImportError as error:
        raise RefusedError(
            "a report needs matplotlib, which isn't installed", fix="pip install 'mlrun-ring[report]'"
        ) from error
    told = history(runs.read_events(run_dir))
    page_path, picture_path = run_dir / PAGE_FILE, run_dir / PICTURE_FILE
    charts.png(picture_path, told, title=f"{told.run.name or run_dir.name}: {_headline(told)}")
    drawn = [charts.svg(draw, told) for draw in charts.CHARTS]
    runs.write_atomically(page_path, _page(told, run_dir.name, drawn))
    return page_path, picture_path


def _headline(told: History) -> str:
    run, summary = told.run, told.run.summary or {}
    status = summary.get("status") or ("failed" if run.failures else run.state or "unknown")
    elapsed = text.duration((run.latest or 0.0) - (run.started or 0.0))
    ranks, hosts = len(run.workers), len({worker.host for worker in run.workers.values()})
    return f"{status} after {elapsed}, {_count(ranks, 'rank')} on {_count(hosts, 'host')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _page(told: History, folder: str, drawn: Sequence[str]) -> str:
    run = told.run
    name = html.escape(run.name or folder)
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(run.started)) if run.started else ""
    simulated = " · simulated" if run.simulated else ""
    status = html.escape(f"{_headline(told)} · begun {began} · {folder}{simulated}")
    charts = "\n".join(f"<figure>{svg}</figure>" for svg in drawn)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}figure {{ margin: 0; }}</style></head>
<body>
<h1>{name}</h1>
<p class="status{" failed" if run.failures else ""}">{status}</p>
{_failure(told)}
<div class="tiles">{_tiles(told)}</div>
<div class="charts">{charts}</div>
<h2>Ranks</h2>
{_ranks(told)}
</body></html>
"""


def _failure(told: History) -> str:
    cause = told.run.cause
    if cause is None:
        return ""
    lines = [f"{failure_place(cause)}: {text.clean(cause.message)}", *map(text.clean, cause.last_lines)]
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def _tiles(told: History) -> str:
    run, summary = told.run, told.run.summary or {}
    speed = summary.get("samples_per_second")
    watts = [host.watts.mean for host in told.hosts.values()]
    known = [value for value in watts if value is not None]
    tiles = [
        (text.speed(run.speed if speed is None else speed), f"{run.unit}/s"),
        (text.UNKNOWN if run.step is None else f"{run.step:,}", "steps"),
        (text.number(run.loss), "training loss"),
        *((text.number(value), name) for name, value in run.metrics.items()),
    ]
    if known and len(known) == len(watts):
        tiles.append((f"{sum(known):.0f} W", "power of all GPUs, mean"))
    return "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for value, name in tiles
    )


def _ranks(told: History) -> str:
    titles = ("rank", "host", "device", f"{told.run.unit}/s", "data", "compute", "waiting", "GPU", "power")
    left = {"host", "device", "thermal"}
    heads = [(title, title) for title in (*titles, "thermal")]
    rows = []
    for rank, worker in sorted(told.run.workers.items()):
        host = told.hosts.get(worker.host or "", Host())
        split = told.splits.get(rank)
        shares = [text.percent(share) for share in split.shares] if split else [text.UNKNOWN] * 3
        watts = host.watts.mean
        cells = [
            str(rank),
            worker.host or text.UNKNOWN,
            " ".join(part for part in (host.chip, worker.device) if part) or text.UNKNOWN,
            text.speed(split.speed if split else None),
            *shares,
            text.percent(host.gpu.mean),
            text.UNKNOWN if watts is None else f"{watts:.1f} W",
            ", ".join(sorted(host.thermal)) or text.UNKNOWN,
        ]
        rows.append(_row("td", [(cell, name) for cell, (name, _) in zip(cells, heads, strict=True)], left))
    return f"<table>{_row('th', heads, left)}{''.join(rows)}</table>"


def _row(tag: str, cells: Sequence[tuple[str, str]], left: set[str]) -> str:
    aligned = (
        f"<{tag}{' class=left' if name in left else ''}>{html.escape(value)}</{tag}>" for value, name in cells
    )
    return f"<tr>{''.join(aligned)}</tr>\n"
