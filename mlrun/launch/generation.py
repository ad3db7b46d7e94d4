"""One generation of a run: its agents and workers, from the first Hello to the last exit."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from mlrun.errors import ExitCode, MlrunError, RefusedError
from mlrun.launch.failures import Failures
from mlrun.launch.membership import Membership
from mlrun.launch.phases import STAGES, STOP_GRACE_S, Phase
from mlrun.launch.preparation import Heard, Preparation, Stage
from mlrun.launch.record import Record
from mlrun.launch.resolve import Resolved
from mlrun.launch.station import Ready, Station, station
from mlrun.protocol import (
    Bye,
    CheckpointEvent,
    Event,
    FailureEvent,
    Hello,
    Kill,
    Listening,
    LogEvent,
    Ping,
    Pong,
    StateEvent,
    Stop,
    WorkerExited,
    WorkerHello,
)
from mlrun.wire import Message, ProtocolError

LOOK_S = 1.0
"""How often the deadline is looked at again: an interrupt may have moved it."""
CERTAIN_S = 1.0
"""How long the others may still say something once the cause is known."""
_QUEUE = 10_000
_AT_WORK = (Phase.STARTING, Phase.TRAINING, Phase.STOPPING)
_EXIT_CODES = {"request": ExitCode.REQUEST_WRONG, "refused": ExitCode.REFUSED}
"""By the kind of the cause; a run that failed otherwise is RUN_FAILED."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """An agent is gone or silent."""

    why: str


_Item: TypeAlias = Message | _Lost | Ready | MlrunError


class Generation:
    """Drives one set of workers. Everything that happens comes through one queue and is handled in order."""

    def __init__(
        self,
        resolved: Resolved,
        run_dir: Path,
        record: Record,
        *,
        here: set[str],
        number: int,
        resume_from: Path | None,
        lease_s: float,
        smoke: bool,
    ) -> None:
        self._spec = resolved.spec
        self._run_dir = run_dir
        self._record = record
        self._lease_s = lease_s
        self._run_id = f"{run_dir.name}-{secrets.token_hex(4)}"
        self._membership = Membership(resolved.spec, resolved.assignments, number)
        self._failures = Failures(self._membership.hosts)
        self._number = number
        self._warned = False
        self._stations = [
            station(
                host,
                [a for a in resolved.assignments if a.host == host.name],
                str(self._spec.workdir),
                run_dir,
                run_id=self._run_id,
                lease_s=lease_s,
                is_here=host.name in here,
            )
            for host in resolved.hosts
        ]
        self._preparation = Preparation(resolved, self._stations, resume_from, record.show, smoke=smoke)
        self._tasks: list[asyncio.Future[None]] = []
        self._transfers: list[asyncio.Future[Any]] = []
        self._waiting: asyncio.Future[list[None]] | None = None
        self._inbox: asyncio.Queue[tuple[Station, _Item]] = asyncio.Queue(_QUEUE)
        self._interrupted: ExitCode | None = None
        self._called_off = False
        self._phase = Phase.GREETING
        self._deadline = time.monotonic() + Phase.GREETING.value

    def interrupt(self, exit_code: ExitCode, word: str) -> None:
        """The user wants to stop: the first time in good order, the second time at once."""
        again = self._interrupted is not None
        self._interrupted = self._interrupted or exit_code
        if self._waiting is not None and (again or self._phase is Phase.GREETING):
            self._waiting.cancel()
        if again or self._phase in (*STAGES.values(), Phase.STARTING):
            self._say(f"{word}: ending now", "warning")
            self._kill()
        elif self._phase in (Phase.TRAINING, Phase.FINISHING):
            what = "finishing the step and saving" if self._spec.run is None else "passed on to the script"
            self._say(f"{word}: {what}; once more ends at once")
            self._record.show(StateEvent("stopping", {"reason": word}))
            self._tell_all(Stop(word, STOP_GRACE_S))
            if self._phase is Phase.TRAINING:
                self._enter(Phase.STOPPING)

    async def run(self) -> ExitCode:
        """From nothing to nothing: when this returns or raises, no worker and no agent is left.

        Raises:
            RefusedError: an agent of another version.
            RunFailedError: an agent can't be started.
        """
        try:
            self._tasks.append(asyncio.ensure_future(self._keep_lease()))
            await self._start_agents()
            await self._until_all_exited()
        finally:
            await _cancel(self._transfers)
            for at in self._stations:
                at.transport.send(Bye())
            await self._preparation.close()
            await asyncio.gather(*(at.close(self._run_id) for at in self._stations))
            await _cancel(self._tasks)
        for failure in self._failures.in_order():
            self._record.show(failure)
        await self._collect()
        return self._exit_code()

    def clocks_ahead(self) -> dict[int, float]:
        """By rank: seconds that its host's clock is ahead of this machine's, where that is known."""
        return {
            assignment.rank: at.clock.ahead_s
            for at in self._stations
            for assignment in at.assignments
            if at.remote is not None and at.clock.ahead_s is not None
        }

    async def _start_agents(self) -> None:
        """All at once; what is wrong with any host is said of all of them together."""
        errors: dict[str, MlrunError] = {}

        async def start(at: Station) -> None:
            try:
                await at.start()
            except MlrunError as error:
                errors[at.name] = error
                return
            lasting = at.remote is not None
            at.transport.send(Hello(self._run_id, at.name, self._lease_s, lasting))
            self._tasks.append(asyncio.ensure_future(self._read(at)))

        await self._unless_interrupted(*(start(at) for at in self._stations))
        if len(errors) == 1:
            raise next(iter(errors.values()))
        if errors:
            all_of_them = "\n".join(f"- {error}" for error in errors.values())
            raise RefusedError(
                f"{len(errors)} of {len(self._stations)} hosts can't take part:\n{all_of_them}"
            )

    async def _collect(self) -> None:
        """Bring logs and checkpoints of other hosts here. Ctrl-C leaves there what hasn't come."""
        self._phase = Phase.COLLECTING

        async def collect(at: Station) -> None:
            if at.remote is not None and at.at_work and (why := await at.remote.bring_everything()):
                text = f"logs and checkpoints of {at.name} stay there in {at.run_dir}: {why}"
                self._record.show(LogEvent(text, "warning", host=at.name))

        await self._unless_interrupted(*(collect(at) for at in self._stations))

    async def _unless_interrupted(self, *work: Awaitable[None]) -> None:
        self._waiting = asyncio.gather(*work)
        with contextlib.suppress(asyncio.CancelledError):
            await self._waiting
        self._waiting = None

    # What comes in -------------------------------------------------------------------------------

    async def _read(self, at: Station) -> None:
        try:
            while (message := await at.transport.receive()) is not None:
                at.heard = time.monotonic()
                if isinstance(message, Pong):
                    at.clock.heard(message, time.time())
                await self._inbox.put((at, message))
            why = "no word from its agent any more"
            if words := await at.transport.last_words():
                why = f"{why} ({words})"
        except ProtocolError as error:
            why = f"what its agent said isn't a message: {error}"
        await self._inbox.put((at, _Lost(why)))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 6)
            now = time.monotonic()
            for at in self._stations:
                if not at.started:
                    continue
                at.transport.send(Ping(time.time()))
                if now - at.heard > self._lease_s:
                    await self._inbox.put((at, _Lost(f"its agent was silent for {self._lease_s:g} s")))

    async def _until_all_exited(self) -> None:
        while not (self._membership.all_exited or self._called_off):
            left = self._deadline - time.monotonic()
            try:
                at, item = await asyncio.wait_for(self._inbox.get(), max(0.0, min(left, LOOK_S)))
            except asyncio.TimeoutError:
                if time.monotonic() < self._deadline:
                    continue
                if self._phase is Phase.KILLING:
                    return
                self._overdue()
                continue
            self._handle(at, item)

    def _handle(self, at: Station, item: _Item) -> None:
        if isinstance(item, FailureEvent):
            self._failed(item)
        elif isinstance(item, Event):
            self._told(at, at.here(item))
        elif isinstance(item, Heard):
            self._prepared(at, item)
        elif isinstance(item, WorkerHello):
            rank = next(a.rank for a in at.assignments if a.local_rank == item.local_rank)
            self._membership.hello(rank)
            if self._phase is Phase.STARTING and self._membership.awaited() is None:
                self._enter(Phase.TRAINING)
        elif isinstance(item, Listening):
            self._listening(item)
        elif isinstance(item, WorkerExited):
            self._exited(item)
        elif isinstance(item, MlrunError):
            raise item
        elif isinstance(item, _Lost) and not at.lost:
            self._lost(at, item.why)

    def _told(self, at: Station, event: Event) -> None:
        self._record.show(event)
        if isinstance(event, StateEvent) and event.rank is not None:
            self._warn_of_size(event.detail.get("parameters"))
            if event.state == "done":
                self._membership.done(event.rank)
        elif isinstance(event, CheckpointEvent) and at.remote is not None and not at.remote.busy:
            self._transfers.append(asyncio.ensure_future(at.remote.bring_checkpoints()))

    def _prepared(self, at: Station, item: Heard) -> None:
        """One step nearer to the workers' start."""
        if self._phase not in STAGES.values():
            return
        before = self._preparation.stage
        self._preparation.heard(at, item)
        if self._preparation.stage is not before:
            self._next_stage()

    def _next_stage(self) -> None:
        stage = self._preparation.stage
        if stage is Stage.SENDING:
            self._transfers.append(asyncio.ensure_future(self._preparation.send_all(self._put)))
        if stage is not Stage.COMPLETE:
            self._enter(STAGES[stage])
            return
        assignments = self._preparation.assignments
        self._membership = Membership(self._spec, assignments, self._number, self._preparation.paths())
        self._failures = Failures(self._membership.hosts)
        self._record.summary.placed(assignments)
        self._preparation.start_workers()
        self._enter(Phase.STARTING)

    async def _put(self, at: Station, item: _Item) -> None:
        await self._inbox.put((at, item))

    def _warn_of_size(self, parameters: int | None) -> None:
        """Once the size of the model is known, which is before the first step."""
        if parameters is not None and not self._warned:
            self._warned = True
            for event in self._preparation.warnings(parameters):
                self._record.show(event)

    def _listening(self, message: Listening) -> None:
        plan = self._membership.listening(message.rank, message.endpoints)
        if plan is not None and self._phase is Phase.STARTING:
            self._tell_all(plan)
            self._enter(Phase.TRAINING)

    def _exited(self, message: WorkerExited) -> None:
        rank = message.rank
        self._record.summary.exited(message)
        self._membership.exited(rank)
        if not self._our_doing(message):
            self._failures.exited(message, done=self._membership.is_done(rank))
            if self._failures:
                self._settle()
            elif self._phase in _AT_WORK and self._spec.run is None:  # scripts may end when they like
                self._enter(Phase.FINISHING)

    def _our_doing(self, message: WorkerExited) -> bool:
        """Whether a worker ended because it was told to; one that left by itself may be the cause."""
        by_signal = message.signal in ("SIGTERM", "SIGKILL")
        return self._phase is Phase.KILLING and (by_signal or self._interrupted is not None)

    def _failed(self, event: FailureEvent) -> None:
        if self._phase is not Phase.KILLING:
            self._failures.said(event)
            self._settle()
        elif self._interrupted is None:
            self._failures.said(replace(event, consequence=True))

    def _lost(self, at: Station, why: str) -> None:
        """An agent's workers end by themselves when it is gone."""
        at.lost = True
        for assignment in at.assignments:
            self._membership.exited(assignment.rank)
        if self._phase is not Phase.KILLING:
            self._failures.said(FailureEvent("lost-host", f"{at.name} is lost: {why}", host=at.name))
            self._settle()

    # What is done about it -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait a moment for the true cause and for what the others say, then end what is left."""
        if self._phase is Phase.KILLING:
            return
        if self._phase in STAGES.values():
            self._kill()
            return
        if self._phase is not Phase.SETTLING:
            self._enter(Phase.SETTLING)
        if self._failures.certain:
            self._deadline = min(self._deadline, time.monotonic() + CERTAIN_S)

    def _overdue(self) -> None:
        waited = f"{self._phase.value:g} s"
        if self._phase is Phase.LINKING:
            self._preparation.settle_links()
            self._next_stage()
            return
        if self._phase in STAGES.values():
            what = self._preparation.stage.value
            self._fail(f"waited {waited} for {self._preparation.awaited()} to {what}")
        elif self._phase is Phase.STARTING:
            self._fail(f"waited {waited} for {self._membership.awaited()}")
        elif self._phase is Phase.FINISHING:
            self._fail(f"{self._membership.running()} still runs {waited} after another rank was done")
        elif self._phase is Phase.STOPPING:
            self._say(f"{self._membership.running()} didn't stop within {waited}: ending now", "warning")
        self._kill()

    def _fail(self, message: str) -> None:
        self._failures.said(FailureEvent("timeout", message))

    def _kill(self) -> None:
        self._called_off = self._phase in STAGES.values()
        self._tell_all(Kill())
        self._enter(Phase.KILLING)

    def _tell_all(self, message: Message) -> None:
        for at in self._stations:
            at.transport.send(message)

    def _say(self, text: str, level: str = "info") -> None:
        self._record.show(LogEvent(text, level))

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._deadline = time.monotonic() + phase.value

    def _exit_code(self) -> ExitCode:
        if not self._failures:
            return self._interrupted or ExitCode.DONE
        return _EXIT_CODES.get(self._failures.in_order()[0].kind, ExitCode.RUN_FAILED)


async def _cancel(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
