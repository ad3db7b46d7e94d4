"""Who this worker is in the run, and the few small collectives the training loop needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlrun.allreduce.communicator import Buffer, Communicator, Op, Work
from mlrun.allreduce.ways import total_rate
from mlrun.data.own import own_data
from mlrun.protocol import DataEvent, Event, LinkEvent, LinkPath


@dataclass(frozen=True, slots=True)
class Flags:
    """What any rank may ask for; all ranks learn the answer at the same step."""

    stop: bool = False
    save: bool = False


class PendingFlags:
    """Flags on their way between ranks while a step is computed."""

    def __init__(self, values: np.ndarray[Any, np.dtype[np.int32]], work: Work | None) -> None:
        self._values = values
        self._work = work

    def wait(self) -> Flags:
        if self._work is not None:
            self._work.wait()
        stop, save = (bool(v) for v in self._values)
        return Flags(stop, save)


@dataclass(frozen=True, slots=True)
class Context:
    """One rank of one generation.

    ``group`` is a group of the loop's own over all ranks, None for world size 1: its operations have their
    own order, so they can't interleave differently with a backend's queue on different ranks.
    """

    rank: int
    size: int
    host: str
    run_dir: Path
    group: Communicator | None
    send: Callable[[Event], None]
    stop_reason: Callable[[], str | None]
    """Why the user wants the run to end, or None. Asked once per step."""
    paths: Mapping[int, Sequence[LinkPath]] = field(default_factory=dict)
    """The chosen ways to each neighbour, where a choice was made."""

    def emit(self, event: Event) -> None:
        """Tell the launcher, signed with rank and host."""
        self.send(dataclasses.replace(event, rank=self.rank, host=self.host))

    def emit_links(self) -> None:
        """Tell what the links to the neighbours have carried so far."""
        for link in self.group.counters() if self.group is not None else ():
            paths = self.paths.get(link.peer, ())
            self.emit(
                LinkEvent(
                    peer=link.peer,
                    kind=paths[-1].kind if paths else None,
                    bytes_sent=link.bytes_sent,
                    bytes_received=link.bytes_received,
                    send_blocked_s=link.send_blocked_s,
                    receive_blocked_s=link.receive_blocked_s,
                    bytes_per_s=total_rate(paths),
                )
            )

    def emit_data(self) -> None:
        """Tell what came so far of data that don't lie on this host; nothing where all of them do."""
        if (counts := own_data.counts()) is not None:
            self.emit(DataEvent(counts.bytes_fetched, counts.files_fetched, counts.files_cached))

    def begin_flags(self, flags: Flags, step: int) -> PendingFlags:
        """Start to agree on ``flags`` (any rank's yes is everyone's), to be waited for after the step."""
        values = np.array([flags.stop, flags.save], dtype=np.int32)
        if self.group is None:
            return PendingFlags(values, None)
        work = self.group.all_reduce(Buffer.of(values), Op.MAX, name=f"flags of step {step}")
        return PendingFlags(values, work)

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's ``value`` (anything JSON can say), in rank order. Collective."""
        if self.group is None:
            return [value]
        payload = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        lengths = np.zeros(self.size, dtype=np.int64)
        own_length = np.array([payload.size], dtype=np.int64)
        self.group.all_gather(Buffer.of(own_length), Buffer.of(lengths), name=f"{name} (lengths)").wait()
        source = np.zeros(int(lengths.max()), dtype=np.uint8)
        source[: payload.size] = payload
        target = np.zeros((self.size, source.size), dtype=np.uint8)
        self.group.all_gather(Buffer.of(source), Buffer.of(target), name=name).wait()
        return [json.loads(target[r, : int(lengths[r])].tobytes()) for r in range(self.size)]

    def barrier(self, name: str) -> None:
        """Wait until every rank is here."""
        if self.group is not None:
            self.group.barrier(name).wait()
