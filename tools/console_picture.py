"""Draw the live view from a run: ``console_picture.py RUN/events.jsonl docs/console.svg``."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console as Terminal

from mlrun.console.frame import frame
from mlrun.console.model import Run
from mlrun.protocol import Event
from mlrun.wire import decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--until", type=float, default=0.7, help="share of the run's time that has passed")
    parser.add_argument("--size", type=int, nargs=2, default=(100, 20), metavar=("COLUMNS", "LINES"))
    asked = parser.parse_args()
    lines = asked.events.read_text(encoding="utf-8").splitlines()
    events = [event for event in map(decode, lines) if isinstance(event, Event)]
    now = events[0].time + asked.until * (events[-1].time - events[0].time)
    run = Run()
    for event in events:
        if event.time <= now:
            run.apply(event)
    width, height = asked.size
    terminal = Terminal(
        record=True,
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
    )
    terminal.print(frame(run, width, height, now))
    terminal.save_svg(str(asked.picture), title="mlrun launch")
    print(f"wrote {asked.picture}")


if __name__ == "__main__":
    main()
