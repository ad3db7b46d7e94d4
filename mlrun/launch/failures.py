"""Why a run failed: the first cause among everything that went wrong at once."""

from __future__ import annotations

from dataclasses import replace

from mlrun.protocol import FailureEvent, WorkerExited

_ABOUT_PEERS = ("lost-host", "timeout")
_DEATH, _EXPLAINED, _COMPLAINT = range(3)
"""How likely a failure is the cause, the likeliest first."""


class Failures:
    """Collects what went wrong, and tells the cause from its consequences.

    When a worker dies its peers complain, often before anyone has noticed the death itself. So a death
    comes before a failure that a worker explained, and that before a complaint about a peer.
    """

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        self._found: dict[int | None, FailureEvent] = {}
        self._weights: dict[int | None, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def certain(self) -> bool:
        """Whether something that can't be a mere consequence has been found."""
        return min(self._weights.values(), default=_COMPLAINT) < _COMPLAINT

    def said(self, event: FailureEvent) -> None:
        """A worker told of a failure, or the launcher itself (which has no rank)."""
        if event.rank not in self._found:
            complaint = event.consequence or (event.rank is not None and event.kind in _ABOUT_PEERS)
            self._add(event, _COMPLAINT if complaint else _EXPLAINED)

    def exited(self, message: WorkerExited, *, done: bool) -> None:
        """A worker ended. Only an exit with 0 after it said that it was done is a good end."""
        said = self._found.get(message.rank)
        if said is not None:
            if not said.last_lines:
                self._found[message.rank] = replace(said, last_lines=message.last_lines)
            return
        if message.exit_code == 0 and done:
            return
        if message.signal is not None:
            kind, text = "signal", f"killed by {message.signal}{_likely(message.signal)}"
        elif message.exit_code == 0:
            kind, text = "exit", "ended with exit code 0 before the training was done"
        else:
            kind, text = "exit", f"ended with exit code {message.exit_code}"
        event = FailureEvent(
            kind, text, last_lines=message.last_lines, rank=message.rank, host=self._hosts[message.rank]
        )
        # TERM is what mpirun and batch systems send to the rest once one has died.
        self._add(event, _EXPLAINED if message.signal == "SIGTERM" else _DEATH)

    def in_order(self) -> list[FailureEvent]:
        """The cause first, then its consequences, as they came here: hosts' clocks differ."""
        ranks = sorted(self._found, key=lambda rank: self._weights[rank])
        return [replace(self._found[rank], consequence=place > 0) for place, rank in enumerate(ranks)]

    def _add(self, event: FailureEvent, weight: int) -> None:
        self._found[event.rank] = event
        self._weights[event.rank] = weight


def _likely(signal_name: str) -> str:
    reasons = {
        "SIGKILL": "by hand, or by the system when memory ran out",
        "SIGSEGV": "a crash in native code",
        "SIGABRT": "an assertion in native code",
        "SIGBUS": "often a full disk or shared memory",
    }
    return f" ({reasons[signal_name]})" if signal_name in reasons else ""
