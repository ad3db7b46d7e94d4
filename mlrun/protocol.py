"""The messages between launcher, agent and worker, and the events of a run.

Only the standard library is imported here: agents load this module and nothing heavier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mlrun.wire import Message

PROTOCOL_VERSION = 2
"""Raised by one whenever a message changes its meaning; both ends must agree."""


# Launcher to agent, and on to the workers -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First line from the launcher. ``lease_s``: silence after which an agent ends its workers."""

    run_id: str
    host: str
    lease_s: float
    lasting: bool = False
    """Whether the end of input starts the clock only: the launcher may attach again within the lease."""
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Assignment(Message):
    """Who one worker is. Sent to the agent for each of its workers, and on to that worker."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str


@dataclass(frozen=True, slots=True)
class LinkEnd(Message):
    """One end of a way between two hosts. ``interface`` None: no cable is chosen (within one host)."""

    address: str
    """Literal, without a port; a link-local IPv6 address carries its own host's scope."""
    interface: str | None = None


@dataclass(frozen=True, slots=True)
class LinkPath(Message):
    """A way between two neighbours and what was measured on it; None where it wasn't.

    ``ends[0]`` belongs to the rank (or host) that comes first, ``ends[1]`` to the next one in the ring.
    """

    ends: list[LinkEnd]
    kind: str | None = None
    """Of the slower of both interfaces; see ``probe.addresses``."""
    bytes_per_s: float | None = None
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkListen(Message):
    """Take part in measuring links: answer probes on ``ends`` until the workers are started."""

    secret: str = field(repr=False)
    ends: list[LinkEnd]
    ports: list[int] | None = None
    """First and last port that may be used; any when None."""


@dataclass(frozen=True, slots=True)
class LinkTry(Message):
    """Connect from ``near`` to ``far`` and measure; answered by LinkMeasured with the same ``number``."""

    number: int
    near: LinkEnd
    far: str
    """``address:port``, a link-local address without scope."""
    seconds: float = 0.0
    """How long to send; 0 measures the round trip alone."""


@dataclass(frozen=True, slots=True)
class LookAtData(Message):
    """Say which files of ``source`` are at ``path``, relative to ``workdir``; answered by DataSeen."""

    source: str
    path: str
    workdir: str


@dataclass(frozen=True, slots=True)
class StoreWay(Message):
    """A way to the data that the launching machine serves: its ``address:port``, as this host dials it."""

    endpoint: str
    interface: str | None = None
    """Of this host, where a cable is chosen."""


@dataclass(frozen=True, slots=True)
class StartWorkers(Message):
    """Start one worker process per assignment. ``spec`` is the resolved JobSpec as plain JSON."""

    assignments: list[Assignment]
    spec: dict[str, Any]
    run_dir: str
    """Folder for this run's logs and checkpoints on the agent's host."""
    secret: str = field(repr=False)
    """Hex, 32 bytes: proves to a neighbour that a link belongs to this run."""
    env: dict[str, str] = field(default_factory=dict, repr=False)
    resume_from: str | None = None
    """Checkpoint folder to go on from."""
    listen: list[LinkEnd] = field(default_factory=list)
    """Where neighbours are accepted; loopback alone when empty."""
    ports: list[int] | None = None
    """First and last port for links; any when None."""
    store: list[StoreWay] = field(default_factory=list)
    """Where the data are served, the best way first; empty where nobody serves them."""


@dataclass(frozen=True, slots=True)
class WorkerStart(Message):
    """The agent's answer to WorkerHello: who this worker is and what it trains."""

    assignment: Assignment
    spec: dict[str, Any]
    run_dir: str
    secret: str = field(repr=False)
    resume_from: str | None = None
    listen: list[LinkEnd] = field(default_factory=list)
    ports: list[int] | None = None
    store: list[StoreWay] = field(default_factory=list)
    lease_s: float | None = None
    """Silence of the agent after which the worker ends itself; Ping renews it."""


@dataclass(frozen=True, slots=True)
class Plan(Message):
    """Membership of one generation, decided by the launcher; every rank gets the same one.

    ``endpoints[r]`` are the literal ``address:port`` (``[v6]:port``) on which rank r accepts links.
    """

    generation: int
    engine: str
    endpoints: list[list[str]]
    hosts: list[str]
    """``hosts[r]`` is the name of rank r's host, for messages."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The ``allreduce`` block of the spec."""
    paths: list[list[LinkPath]] = field(default_factory=list)
    """``paths[r]`` joins rank r and the next one, the best first. Empty: any endpoint will do."""


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Finish the step, save, and exit within ``grace_s`` seconds."""

    reason: str
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Kill(Message):
    """End all workers now (TERM, then KILL)."""


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Renews the lease. The agent answers with Pong and passes it on to its workers."""

    sent: float


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The run is over: the agent exits, and end of input isn't a lost launcher."""


@dataclass(frozen=True, slots=True)
class Received(Message):
    """Both ways: so many messages of the other end have come in, which needn't keep them any longer.

    It isn't counted itself. On a connection that is taken up again it is the first line of either end, and
    what the other one didn't receive comes after it.
    """

    count: int


# Agent to launcher ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HelloReply(Message):
    """What the agent says of its host (see ``probe``)."""

    host: str
    pid: int
    facts: dict[str, Any]
    protocol_version: int = PROTOCOL_VERSION
    socket: str | None = None
    """Where ``mlrun.agent.attach`` finds a lasting agent again."""


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answer to a Ping: its ``sent``, and the time on the agent's host."""

    sent: float
    time: float | None = None


@dataclass(frozen=True, slots=True)
class LinkListening(Message):
    """Where the ``ends`` of LinkListen answer, in their order; None for those that can't."""

    endpoints: list[str | None]


@dataclass(frozen=True, slots=True)
class LinkMeasured(Message):
    """What came of a LinkTry. ``problem`` says in plain words why nothing answers there."""

    number: int
    round_trip_s: float | None = None
    bytes_per_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DataSeen(Message):
    """What a LookAtData found. ``problem`` says in plain words why it couldn't look."""

    place: str
    classes: dict[str, Any] = field(default_factory=dict)
    """How many files each class has, where a folder is a class."""
    files: int = 0
    names_hash: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited(Message):
    """A worker ended. Exactly one of ``exit_code`` and ``signal`` is set."""

    rank: int
    exit_code: int | None
    signal: str | None
    last_lines: list[str]


# Worker to agent (passed on to the launcher) ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerHello(Message):
    """First line of a worker on the agent's socket."""

    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Listening(Message):
    """A worker's bound data-plane endpoints, before the plan is made."""

    rank: int
    endpoints: list[str]


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event(Message):
    """Base of what a run tells: written to ``events.jsonl`` and shown by every console.

    ``time`` is seconds since the epoch on the machine that made the event; ``rank`` and ``host`` say
    where, and are None where the launcher itself speaks.
    """

    time: float = field(default_factory=time.time, kw_only=True)
    rank: int | None = field(default=None, kw_only=True)
    host: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class StepEvent(Event):
    """Progress of one rank since its last StepEvent (``steps`` optimizer steps, ``seconds`` long).

    The split ``data_s + compute_s + comm_s`` covers ``seconds``; ``comm_s`` is exposed communication:
    time in which the rank did nothing but wait for its peers.
    """

    step: int
    steps_total: int | None
    """None where a script doesn't tell."""
    epoch: int | None
    steps: int
    samples: int
    seconds: float
    data_s: float
    compute_s: float
    comm_s: float
    lr: float | None
    loss: float | None = None
    """Mean over the samples of all ranks; None on steps where it wasn't read."""


@dataclass(frozen=True, slots=True)
class EvaluationEvent(Event):
    """Metrics over the whole validation set, summed over ranks."""

    step: int
    epoch: int
    metrics: dict[str, float]
    samples: int
    seconds: float
    best: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointEvent(Event):
    step: int
    path: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TelemetryEvent(Event):
    """One second of one host. None is unknown, and never means 0."""

    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_watts: float | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    thermal: str | None = None
    """nominal | moderate | heavy | trapping | sleeping (a Mac's thermal pressure); throttled (NVIDIA)"""
    power: str | None = None
    """mains | battery"""
    battery_percent: float | None = None
    low_power: bool | None = None
    """Whether the host is set to save energy, which makes it slower."""
    chip: str | None = None
    """Of the GPU, as its maker calls it."""


@dataclass(frozen=True, slots=True)
class LogEvent(Event):
    """A line for people: from mlrun (``source="mlrun"``) or from a worker's stdout/stderr."""

    text: str
    level: str = "info"
    """info | warning | error"""
    source: str = "mlrun"
    """mlrun | stdout | stderr"""


@dataclass(frozen=True, slots=True)
class StateEvent(Event):
    """What the run or a rank does: starting, connecting, training, evaluating, saving, stopping, done."""

    state: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkEvent(Event):
    """Counters of the link to one neighbour since the start."""

    peer: int
    kind: str | None
    """Of the slowest interface in use; see ``probe.addresses``."""
    bytes_sent: int
    bytes_received: int
    send_blocked_s: float
    receive_blocked_s: float
    bytes_per_s: float | None = None
    """What all interfaces in use could carry when they were measured before the start."""


@dataclass(frozen=True, slots=True)
class DataEvent(Event):
    """What one rank, with its loader processes, got of data that don't lie on its host, since the start."""

    bytes_fetched: int
    files_fetched: int
    files_cached: int
    """Read from the host's cache."""


@dataclass(frozen=True, slots=True)
class FailureEvent(Event):
    """Something ended the run. The first one is the cause; the rest have ``consequence`` set."""

    kind: str
    """exception | signal | exit | timeout | nonfinite | diverged | lost-host | request | refused"""
    message: str
    step: int | None = None
    last_lines: list[str] = field(default_factory=list)
    consequence: bool = False


@dataclass(frozen=True, slots=True)
class SummaryEvent(Event):
    """The last event; its ``summary`` is the content of ``summary.json``."""

    summary: dict[str, Any]
