"""One generation of a run: its agents and workers, from the first Hello to the last exit."""

from __future__ import annotations

import asyncio
import enum
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from mlrun.errors import ExitCode, RefusedError
from mlrun.launch.failures import Failures
from mlrun.launch.membership import Membership
from mlrun.launch.record import Record
from mlrun.launch.resolve import Resolved, for_host
from mlrun.launch.transport import LocalTransport, Transport
from mlrun.protocol import (
    PROTOCOL_VERSION,
    Assignment,
    Bye,
    Event,
    FailureEvent,
    Hello,
    HelloReply,
    Kill,
    Listening,
    LogEvent,
    Message,
    Ping,
    ProtocolError,
    StartWorkers,
    StateEvent,
    Stop,
    WorkerExited,
    WorkerHello,
)

STOP_GRACE_S = 60.0
"""How long workers may take to finish their step and save."""
CLOSE_S = 12.0
"""How long an agent may take to end its workers and itself."""
LOOK_S = 1.0
"""How often the deadline is looked at again: an interrupt may have moved it."""
CERTAIN_S = 1.0
"""How long the others may still say something once the cause is known."""
_QUEUE = 10_000


class Phase(enum.Enum):
    """What is being waited for, and for how many seconds at most."""

    GREETING = 30.0
    STARTING = 300.0
    TRAINING = float("inf")
    STOPPING = STOP_GRACE_S + 5
    FINISHING = 120.0
    SETTLING = 7.0
    KILLING = 10.0


@dataclass(slots=True)
class _Agent:
    transport: Transport
    assignments: list[Assignment]
    heard: float
    reply: HelloReply | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Lost:
    """An agent is gone or silent."""

    why: str


class Generation:
    """Drives one set of workers. Everything that happens comes through one queue and is handled in order."""

    def __init__(
        self,
        resolved: Resolved,
        run_dir: Path,
        record: Record,
        *,
        number: int,
        resume_from: Path | None,
        lease_s: float,
        smoke: bool,
    ) -> None:
        self._spec = resolved.spec
        self._run_dir = run_dir
        self._record = record
        self._resume_from = resume_from
        self._lease_s = lease_s
        self._smoke = smoke
        self._run_id = f"{run_dir.name}-{secrets.token_hex(4)}"
        self._membership = Membership(resolved.spec, resolved.assignments, number)
        self._failures = Failures(self._membership.hosts)
        self._exits: dict[int, WorkerExited] = {}
        self._agents = [
            _Agent(
                LocalTransport(host), [a for a in resolved.assignments if a.host == host], time.monotonic()
            )
            for host in dict.fromkeys(self._membership.hosts)
        ]
        self._inbox: asyncio.Queue[tuple[_Agent, Message | _Lost]] = asyncio.Queue(_QUEUE)
        self._interrupted: ExitCode | None = None
        self._called_off = False
        self._phase = Phase.GREETING
        self._deadline = time.monotonic() + Phase.GREETING.value

    def interrupt(self, exit_code: ExitCode, word: str) -> None:
        """The user wants to stop: the first time in good order, the second time at once."""
        again = self._interrupted is not None
        self._interrupted = self._interrupted or exit_code
        if again or self._phase in (Phase.GREETING, Phase.STARTING):
            self._say(f"{word}: ending now", "warning")
            self._kill()
        elif self._phase in (Phase.TRAINING, Phase.FINISHING):
            self._say(f"{word}: finishing the step and saving; once more ends at once")
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
        tasks: list[asyncio.Task[None]] = []
        started: list[_Agent] = []
        try:
            for agent in self._agents:
                await agent.transport.start()
                started.append(agent)
                agent.transport.send(Hello(self._run_id, agent.transport.host, self._lease_s))
                tasks.append(asyncio.ensure_future(self._read(agent)))
            tasks.append(asyncio.ensure_future(self._keep_lease()))
            await self._until_all_exited()
        finally:
            for agent in started:
                agent.transport.send(Bye())
            await asyncio.gather(*(self._close(agent) for agent in started))
            for task in tasks:
                task.cancel()
        for failure in self._failures.in_order():
            self._record.show(failure)
        return self._exit_code()

    async def _close(self, agent: _Agent) -> None:
        in_order = await agent.transport.close(0 if agent.lost else CLOSE_S)
        if not in_order:
            await agent.transport.reap(self._run_id)

    # What comes in -------------------------------------------------------------------------------

    async def _read(self, agent: _Agent) -> None:
        try:
            while (message := await agent.transport.receive()) is not None:
                agent.heard = time.monotonic()
                await self._inbox.put((agent, message))
            why = "its agent ended"
            if words := await agent.transport.last_words():
                why = f"{why} ({words})"
        except ProtocolError as error:
            why = f"what its agent said isn't a message: {error}"
        await self._inbox.put((agent, _Lost(why)))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 6)
            now = time.monotonic()
            for agent in self._agents:
                agent.transport.send(Ping(time.time()))
                if now - agent.heard > self._lease_s:
                    await self._inbox.put((agent, _Lost(f"its agent was silent for {self._lease_s:g} s")))

    async def _until_all_exited(self) -> None:
        while not (self._membership.all_exited or self._called_off):
            left = self._deadline - time.monotonic()
            try:
                agent, item = await asyncio.wait_for(self._inbox.get(), max(0.0, min(left, LOOK_S)))
            except asyncio.TimeoutError:
                if time.monotonic() < self._deadline:
                    continue
                if self._phase is Phase.KILLING:
                    return
                self._overdue()
                continue
            self._handle(agent, item)

    def _handle(self, agent: _Agent, item: Message | _Lost) -> None:
        if isinstance(item, FailureEvent):
            self._failed(item)
        elif isinstance(item, Event):
            self._record.show(item)
            if isinstance(item, StateEvent) and item.state == "done" and item.rank is not None:
                self._membership.done(item.rank)
        elif isinstance(item, HelloReply):
            self._greeted(agent, item)
        elif isinstance(item, WorkerHello):
            rank = next(a.rank for a in agent.assignments if a.local_rank == item.local_rank)
            self._membership.hello(rank)
            if self._phase is Phase.STARTING and self._membership.awaited() is None:
                self._enter(Phase.TRAINING)
        elif isinstance(item, Listening):
            self._listening(item)
        elif isinstance(item, WorkerExited):
            self._exited(item)
        elif isinstance(item, _Lost) and not agent.lost:
            self._lost(agent, item.why)

    def _greeted(self, agent: _Agent, reply: HelloReply) -> None:
        if reply.protocol_version != PROTOCOL_VERSION:
            raise RefusedError(
                f"{agent.transport.host} speaks version {reply.protocol_version} of mlrun's protocol, "
                f"this machine {PROTOCOL_VERSION}",
                fix="install the same mlrun on both",
            )
        agent.reply = reply
        if self._phase is not Phase.GREETING or any(other.reply is None for other in self._agents):
            return
        secret = secrets.token_hex(32)
        env = {
            name: os.environ.get(name, "") if value is None else value
            for name, value in self._spec.env.items()
            if value is not None or name in os.environ
        }
        for each in self._agents:
            assert each.reply is not None
            spec, notes = for_host(self._spec, len(each.assignments), each.reply.facts, smoke=self._smoke)
            for note in notes:
                self._record.show(LogEvent(note, host=each.transport.host))
            resume_from = str(self._resume_from) if self._resume_from else None
            spec_json = spec.model_dump(mode="json")
            each.transport.send(
                StartWorkers(each.assignments, spec_json, str(self._run_dir), secret, env, resume_from)
            )
        self._enter(Phase.STARTING)

    def _listening(self, message: Listening) -> None:
        plan = self._membership.listening(message.rank, message.endpoints)
        if plan is not None and self._phase is Phase.STARTING:
            self._tell_all(plan)
            self._enter(Phase.TRAINING)

    def _exited(self, message: WorkerExited) -> None:
        rank = message.rank
        self._exits[rank] = message
        self._record.summary.exited(message)
        self._membership.exited(rank)
        if not self._our_doing(message):
            self._failures.exited(message, done=self._membership.is_done(rank))
            if self._failures:
                self._settle()
            elif self._phase in (Phase.STARTING, Phase.TRAINING, Phase.STOPPING):
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

    def _lost(self, agent: _Agent, why: str) -> None:
        """An agent's workers end by themselves when it is gone."""
        agent.lost = True
        for assignment in agent.assignments:
            self._membership.exited(assignment.rank)
        if self._phase is not Phase.KILLING:
            host = agent.transport.host
            self._failures.said(FailureEvent("lost-host", f"{host} is lost: {why}", host=host))
            self._settle()

    # What is done about it -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait a moment for the true cause and for what the others say, then end what is left."""
        if self._phase is Phase.KILLING:
            return
        if self._phase is not Phase.SETTLING:
            self._enter(Phase.SETTLING)
        if self._failures.certain:
            self._deadline = min(self._deadline, time.monotonic() + CERTAIN_S)

    def _overdue(self) -> None:
        waited = f"{self._phase.value:g} s"
        if self._phase is Phase.GREETING:
            hosts = ", ".join(a.transport.host for a in self._agents if a.reply is None)
            self._fail(f"the agent on {hosts} didn't answer within {waited}")
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
        self._called_off = self._phase is Phase.GREETING
        self._tell_all(Kill())
        self._enter(Phase.KILLING)

    def _tell_all(self, message: Message) -> None:
        for agent in self._agents:
            agent.transport.send(message)

    def _say(self, text: str, level: str = "info") -> None:
        self._record.show(LogEvent(text, level))

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._deadline = time.monotonic() + phase.value

    def _exit_code(self) -> ExitCode:
        if not self._failures:
            return self._interrupted or ExitCode.DONE
        cause = self._failures.in_order()[0]
        exited = self._exits.get(cause.rank) if cause.rank is not None else None
        if cause.kind == "refused" and exited is not None and exited.exit_code in (2, 3):
            return ExitCode(exited.exit_code)
        return ExitCode.RUN_FAILED
