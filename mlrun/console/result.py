"""How a run ended, in a few lines: the end of every view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from mlrun.console import text
from mlrun.console.model import Run, named_metrics
from mlrun.protocol import FailureEvent

_STYLES = {"done": "bold green", "failed": "bold red"}


def result(run: Run) -> Iterator[Text]:
    """The lines; none where the run never got to tell anything."""
    summary = run.summary or {}
    if run.started is None:
        return
    status = summary.get("status") or ("failed" if run.failures else run.state or "unknown")
    name = f"  {run.name or ''}{' (simulated)' if run.simulated else ''}"
    yield Text.assemble((status, _STYLES.get(status, "bold yellow")), (name, "bold"), f"  {_progress(run)}")
    if run.failures:
        yield from _failures(run)
    yield from _figures(run, summary)
    yield from _next(run, summary)


def _progress(run: Run) -> str:
    elapsed = text.duration((run.latest or 0) - (run.started or 0))
    if run.step is None and run.summary is not None and run.summary.get("status") == "done":
        return f"in {elapsed}"  # a script that reported nothing
    if run.step is None:
        return f"before the first step, after {elapsed}"
    total = f" of {run.steps_total:,}" if run.steps_total and run.steps_total != run.step else ""
    return f"{run.step:,}{total} steps in {elapsed}"


def failure_place(failure: FailureEvent) -> str:
    rank = None if failure.rank is None else f"rank {failure.rank}"
    place = " on ".join(part for part in (rank, failure.host) if part) or "mlrun"
    return place if failure.step is None else f"{place}, step {failure.step}"


def _failures(run: Run) -> Iterator[Text]:
    cause = run.cause or run.failures[0]
    yield Text.assemble("  ", (f"{failure_place(cause)}: ", "bold"), (text.clean(cause.message), "red"))
    said = {line.strip() for line in cause.message.splitlines()}
    if not said.issuperset(line.strip() for line in cause.last_lines):
        for line in cause.last_lines:
            yield Text.assemble(("  │ ", "red"), text.clean(line))
    same = [f for f in run.failures if f is not cause and f.message == cause.message]
    if same:
        yield Text(f"  the same: {', '.join(failure_place(f) for f in same)}", style="dim")
    rest = [f for f in run.failures if f.message != cause.message]
    if rest:
        yield Text("  then, as consequences:", style="dim")
    for failure in rest:
        message = text.clean(failure.message.partition("\n")[0])
        yield Text(f"    {failure_place(failure)}: {message}", style="dim")


def _figures(run: Run, summary: dict[str, Any]) -> Iterator[Text]:
    quality = {**run.metrics, **named_metrics(summary.get("metrics") or {})}
    loss = run.loss if summary.get("loss") is None else summary["loss"]
    told = [f"{name} {text.number(value)}" for name, value in quality.items()]
    if loss is not None:
        told.append(f"training loss {text.number(loss)}")
    if told:
        yield _line("result", "   ".join(told))
    ranks = summary.get("ranks") or []
    total, speeds = _speeds(run, summary)
    if total is not None:
        each = "   ".join(f"rank {rank} {text.speed(speed)}" for rank, speed in sorted(speeds.items()))
        figure = text.speed(total) + text.speed_up(run.alone and total / run.alone)
        yield _line(f"{run.unit}/s", figure + (f"   {each}" if len(speeds) > 1 else ""))
    if (told_of_links := _links(summary)) is not None:
        yield _line("links", told_of_links)
    if (told_of_data := _data(ranks)) is not None:
        yield _line("data", told_of_data)
    if summary.get("left_out"):
        yield _line("left out", f"{summary['left_out']:,} bad files or rows, named in the log", "yellow")
    agree = summary.get("hashes_agree")
    if agree is not None and len(ranks) > 1:
        words = f"equal on all {len(ranks)} ranks" if agree else "DIFFER between ranks"
        digest = summary.get("parameter_hash")
        yield _line(
            "parameters", f"{words}   {digest[:16]}" if digest else words, None if agree else "bold red"
        )


def _links(summary: dict[str, Any]) -> str | None:
    """The edge of the ring that all wait for; None where none was measured."""
    links = summary.get("links") or []
    measured = [link for link in links if link["bytes_per_s"] is not None]
    if not measured:
        return None
    slowest = min(measured, key=lambda link: float(link["bytes_per_s"]))
    which = f"slowest of {len(links)}: " if len(links) > 1 else ""
    kind = f" over {slowest['kind']}" if slowest["kind"] else ""
    return f"{which}{' → '.join(slowest['hosts'])}{kind}, {text.size(slowest['bytes_per_s'])}/s"


def _data(ranks: list[dict[str, Any]]) -> str | None:
    """What came from elsewhere; None where the data lay on every host."""
    told = [rank for rank in ranks if rank.get("bytes_fetched") is not None]
    if not told:
        return None
    files, cached = (sum(rank[key] for rank in told) for key in ("files_fetched", "files_cached"))
    fetched = (
        f"{text.size(sum(rank['bytes_fetched'] for rank in told))} in {files:,} files" if files else "none"
    )
    return f"fetched: {fetched}, read from the hosts' caches: {cached:,} files"


def _speeds(run: Run, summary: dict[str, Any]) -> tuple[float | None, dict[int, float | None]]:
    """Of all and of each rank: the means of the whole run, or the last known where it didn't get that far."""
    if (total := summary.get("samples_per_second")) is not None:
        return total, {rank["rank"]: rank["samples_per_second"] for rank in summary["ranks"]}
    return run.speed, {worker.rank: worker.speed for worker in run.workers.values()}


def _next(run: Run, summary: dict[str, Any]) -> Iterator[Text]:
    folder = summary.get("run_dir") or run.run_dir
    if folder is None:
        return
    yield _line("run folder", _near(folder))
    checkpoint = summary.get("checkpoint")
    if checkpoint is None:
        return
    complete = (summary.get("status"), summary.get("reason")) == ("done", "complete")
    more = f" --set steps={2 * summary['step']}" if complete else ""  # there is nothing left otherwise
    yield _line("go on", f"mlrun resume {Path(folder).name}{more}")
    if not run.simulated:
        kind = "numpy" if (summary.get("versions") or {}).get("framework") == "tensorflow" else "torch"
        yield _line("load", f'safetensors.{kind}.load_file("{_near(checkpoint)}/model.safetensors")')


def _near(path: str) -> str:
    """Relative to where the user is, where that is inside."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _line(name: str, value: str, style: str | None = None) -> Text:
    return Text.assemble((f"  {name:<12}", "dim"), (value, style or ""))
