"""One stream of events to all who want it: events.jsonl, the console, the summary and TensorBoard."""

from __future__ import annotations

from pathlib import Path

from mlrun import runs
from mlrun.console import Console
from mlrun.errors import RunFailedError
from mlrun.launch.scalars import open_scalars
from mlrun.launch.summary import Summary
from mlrun.protocol import Event


class Record:
    """Everything that a run tells goes through ``show``, in order."""

    def __init__(self, run_dir: Path, console: Console, summary: Summary) -> None:
        self.summary = summary
        self._console = console
        self._log = runs.EventLog(run_dir)
        self._scalars = open_scalars(run_dir)

    def show(self, event: Event) -> None:
        """Write, show and count one event.

        Raises:
            RunFailedError: the run folder can't be written any more.
        """
        try:
            self._log.write(event)
        except OSError as error:
            raise RunFailedError(
                f"can't write {runs.EVENTS_FILE}: {error.strerror}", fix="free some disk"
            ) from error
        self.summary.add(event)
        self._console.show(event)
        if self._scalars is not None:
            self._scalars.add(event)

    def close(self) -> None:
        self._log.close()
        self._console.close()
        if self._scalars is not None:
            self._scalars.close()
