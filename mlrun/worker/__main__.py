"""``python -m mlrun.worker``: one rank of a run, from its agent's first word to its last."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mlrun.allreduce.communicator import Communicator
from mlrun.allreduce.links import LinkError, Listener
from mlrun.allreduce.ways import to_neighbours
from mlrun.backends import registry
from mlrun.data.own import own_data
from mlrun.errors import ExitCode, MlrunError, RefusedError, RequestError
from mlrun.protocol import (
    Assignment,
    Event,
    LinkEnd,
    LinkPath,
    Listening,
    LogEvent,
    Plan,
    StateEvent,
    WorkerHello,
    WorkerStart,
)
from mlrun.spec import JobSpec
from mlrun.spec.script import Script
from mlrun.worker.channel import Channel
from mlrun.worker.context import Context
from mlrun.worker.failure import failure_event
from mlrun.worker.loop import TrainingLoop
from mlrun.worker.script import ScriptRun
from mlrun.worker.verdict import VerdictError

START_TIMEOUT_S = 60.0
PLAN_TIMEOUT_S = 600.0
"""The plan comes once every worker listens, and the slowest host may take minutes to import its framework."""

LOCAL_RANK = "MLRUN_LOCAL_RANK"
"""Set by the agent, unless it started mpirun."""

CLOSE_TIMEOUT_S = 5.0
"""The longest that a failed worker takes to say goodbye."""

EXIT_TIMEOUT_S = 15.0
"""The longest that what the user's code left behind (threads, exit handlers) keeps a worker that is done."""


class Worker:
    """The life of one rank."""

    def __init__(self, channel: Channel, start: WorkerStart) -> None:
        self._channel = channel
        self._start = start
        self._communicator: Communicator | None = None
        self._paths: Mapping[int, Sequence[LinkPath]] = {}

    def train(self) -> None:
        """Join the run, train, and report.

        Raises:
            Exception: whatever went wrong; ``failure_event`` puts it into words.
        """
        self._say("starting")
        spec = JobSpec.model_validate(self._start.spec)
        if spec.run is not None:
            self._run_script(spec.run)
            return
        backend = registry.create(spec.framework)
        own_data.introduce(self._start.store, self._start.secret)
        self._communicator = self._join()
        assignment = self._start.assignment
        shape = backend.build(spec, self._communicator, assignment.local_rank)
        group = self._communicator.split(range(assignment.world_size)) if self._communicator else None
        context = Context(
            rank=assignment.rank,
            size=assignment.world_size,
            host=assignment.host,
            run_dir=Path(self._start.run_dir),
            group=group,
            send=self._channel.send,
            stop_reason=self._stop_reason,
            paths=self._paths,
        )
        resume_from = self._start.resume_from
        if assignment.local_rank == 0 and (warning := own_data.fill(spec.seed)) is not None:
            self._send(LogEvent(warning, "warning"))
        loop = TrainingLoop(spec, backend, shape, context)
        loop.run(Path(resume_from) if resume_from is not None else None)
        own_data.close()
        backend.close()
        self.leave()

    def _run_script(self, run: Script) -> None:
        self._communicator = self._join()
        ScriptRun(run, self._start, self._communicator, self._send, self._stop_reason).run()
        self.leave()

    def fail(self, error: Exception) -> None:
        """Report ``error`` and free the peers that wait for this rank."""
        event = failure_event(error, self._start.assignment.rank)
        if event.last_lines:
            traceback.print_exception(error)
        elif not event.consequence:
            print(event.message, file=sys.stderr)
        self._send(event)
        if isinstance(error, VerdictError):  # it ends every rank, and some may still be hearing it
            self.leave()
        else:
            self.abort(event.message)

    def abort(self, reason: str) -> None:
        """Free the peers that wait for this rank, and tell them why."""
        if self._communicator is not None:
            self._communicator.abort(reason)
        self.leave()

    def leave(self) -> None:
        """Hang up on the neighbours, in order."""
        if self._communicator is not None:
            self._communicator.close()

    def _join(self) -> Communicator | None:
        """Say where this rank listens, learn the plan, connect to the neighbours. None for world size 1."""
        assignment = self._start.assignment
        if assignment.world_size == 1:
            return None
        from mlrun.allreduce import engines  # noqa: PLC0415 - the native core isn't needed by a single worker

        self._say("connecting")
        with contextlib.closing(_listener(self._start)) as listener:
            self._channel.send(Listening(assignment.rank, listener.endpoints))
            plan = self._channel.receive(Plan, PLAN_TIMEOUT_S)
            self._paths = to_neighbours(plan.paths, assignment.rank)
            return engines.connect(plan, assignment.rank, listener, self._start.secret)

    def _stop_reason(self) -> str | None:
        return self._channel.stop.reason if self._channel.stop is not None else None

    def _say(self, state: str) -> None:
        self._send(StateEvent(state))

    def _send(self, event: Event) -> None:
        assignment = self._start.assignment
        self._channel.send(dataclasses.replace(event, rank=assignment.rank, host=assignment.host))


def main() -> int:
    """Run one worker; returns its exit code."""
    faulthandler.enable()  # a crash in native code shows its stack in the log
    path = os.environ.get("MLRUN_AGENT_SOCKET")
    if path is None:
        print("mlrun.worker is started by mlrun's agent; to train, use: mlrun launch SPEC", file=sys.stderr)
        return ExitCode.REQUEST_WRONG
    try:
        with contextlib.closing(Channel(path)) as channel:
            channel.send(WorkerHello(_local_rank(), os.getpid()))
            start = channel.receive(WorkerStart, START_TIMEOUT_S)
            _describe_neighbours(start.assignment)
            return _run(Worker(channel, start))
    except MlrunError as error:  # it wasn't a rank of a run yet, so nobody else can tell
        print(error, file=sys.stderr)
        return error.exit_code


def _run(worker: Worker) -> int:
    try:
        worker.train()
        _leave_within(EXIT_TIMEOUT_S, ExitCode.DONE)
        return ExitCode.DONE
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):  # as Python does at its end
            print(error.code, file=sys.stderr)
        _leave_within(CLOSE_TIMEOUT_S, code)
        worker.abort(f"its code called sys.exit({error.code!r})")
        return code
    except Exception as error:
        code = error.exit_code if isinstance(error, MlrunError) else ExitCode.RUN_FAILED
        _leave_within(CLOSE_TIMEOUT_S, code)
        worker.fail(error)
        return code


def _leave_within(seconds: float, exit_code: int) -> None:
    """A worker that is through ends, even where a framework's or the user's threads won't let go."""

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)

    watchdog = threading.Timer(seconds, leave)
    watchdog.daemon = True
    watchdog.start()


def _local_rank() -> int:
    """From the agent, or from the mpirun that the agent started.

    Raises:
        RequestError: neither said it.
    """
    for variable in (LOCAL_RANK, "OMPI_COMM_WORLD_LOCAL_RANK"):
        if variable in os.environ:
            return int(os.environ[variable])
    raise RequestError("this worker wasn't told its local rank (MLRUN_LOCAL_RANK)")


def _describe_neighbours(assignment: Assignment) -> None:
    """The usual variables, which frameworks and people's code read to share this host's cores."""
    os.environ["RANK"] = str(assignment.rank)
    os.environ["WORLD_SIZE"] = str(assignment.world_size)
    os.environ["LOCAL_RANK"] = str(assignment.local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(assignment.local_world_size)


def _listener(start: WorkerStart) -> Listener:
    """Where neighbours reach this worker: on the interfaces chosen for it, or on this host alone.

    Raises:
        RefusedError: an address is gone, or no port is free.
    """
    ends = start.listen or [LinkEnd("127.0.0.1")]
    ports = range(start.ports[0], start.ports[-1] + 1) if start.ports else None
    try:
        return Listener([end.address for end in ends], ports, [end.interface for end in ends])
    except LinkError as error:
        fix = "give network.ports a free port for each worker of a host" if ports else None
        raise RefusedError(str(error), fix=fix) from error


def _leave(exit_code: int) -> NoReturn:
    """A failed worker tells how it ended at once: a framework may take many seconds to be torn down."""
    if exit_code != ExitCode.DONE and LOCAL_RANK in os.environ:  # mpirun wants MPI's own end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    _leave(main())
