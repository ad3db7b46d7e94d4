"""What the live view costs: its share of a core, and what it takes from the training beside it.

``console.py`` shows a made-up run of 4 and of 64 hosts on a pseudo-terminal and measures the processor time
of the process that draws. ``--training`` also trains a small spec with the live view and without, in turns,
and compares the images per second.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import statistics
import struct
import sys
import tempfile
import termios
import threading
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PLAYER = ROOT / "tests" / "console" / "replay.py"
SPEC = ROOT / "configs" / "digits.yaml"
LIMITS = {4: 5.0, 64: 10.0}
"""Hosts -> percent of a core."""
LEAST_RATIO = 0.99


def on_terminal(command: list[str], columns: int, lines: int, cwd: Path) -> tuple[psutil.Process, int]:
    """Start ``command`` on a pseudo-terminal whose output is read and dropped."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    process = psutil.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env)
    os.close(theirs)
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    return process, ours


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except OSError:  # Linux's answer once the other side is closed
        return


def share_of_a_core(hosts: int, seconds: int, columns: int, lines: int) -> float:
    """Percent, over ``seconds`` after the first three."""
    command = [sys.executable, str(PLAYER), "live", "--ranks", str(hosts), "--seconds", str(seconds + 10)]
    process, _ = on_terminal(command, columns, lines, ROOT)
    try:
        threading.Event().wait(3)
        before = process.cpu_times()
        threading.Event().wait(seconds)
        after = process.cpu_times()
    finally:
        process.kill()
        process.wait()
    return 100 * (after.user + after.system - before.user - before.system) / seconds


def images_per_second(console: str, workers: int) -> float:
    """Of a whole run with this view."""
    with tempfile.TemporaryDirectory() as folder:
        # A thread per worker leaves the launcher a core of two, as a Mac's other cores would.
        launch = ["launch", str(SPEC), "-np", str(workers), "--set", "threads=1"]
        command = [sys.executable, "-m", "mlrun.cli", *launch]
        process, _ = on_terminal([*command, "--console", console], 100, 30, Path(folder))
        if process.wait() != 0:
            raise SystemExit(f"the run with --console {console} failed")
        (summary,) = Path(folder).glob("runs/*/summary.json")
        speed: float = json.loads(summary.read_text())["samples_per_second"]
        return speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="to measure the view for")
    parser.add_argument("--training", type=int, metavar="PAIRS", help="pairs of training runs to compare")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    kept = True
    for hosts, (columns, lines) in {4: (80, 24), 64: (200, 50)}.items():
        share = share_of_a_core(hosts, asked.seconds, columns, lines)
        kept &= share <= LIMITS[hosts]
        print(f"{hosts:>3} hosts at {columns}x{lines}: {share:.1f} % of a core (limit {LIMITS[hosts]:g} %)")
    if asked.training:
        pairs = [
            (images_per_second("live", asked.workers), images_per_second("off", asked.workers))
            for _ in range(asked.training)
        ]
        ratio = statistics.median(live / off for live, off in pairs)
        kept &= ratio >= LEAST_RATIO
        told = ", ".join(f"{live:.0f}/{off:.0f}" for live, off in pairs)
        print(f"images/s with the live view over off: {ratio:.3f} (limit {LEAST_RATIO}; {told})")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
