"""The workers of one host: started, followed, reported, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from mlrun.agent.channel import Channels
from mlrun.agent.command import mpi_command, worker_command, worker_environment
from mlrun.agent.logs import Log
from mlrun.agent.supervision import DRAIN_S, Fifo, Process, Streams, ending, exit_under_mpi, follow_all
from mlrun.protocol import (
    Assignment,
    FailureEvent,
    StartWorkers,
    StateEvent,
    WorkerExited,
    WorkerStart,
)
from mlrun.wire import Message


class Team:
    """What one StartWorkers asked for."""

    def __init__(
        self,
        request: StartWorkers,
        run_id: str,
        folder: Path,
        channels: Channels,
        forward: Callable[[Message, int], None],
        *,
        lease_s: float,
    ) -> None:
        self._request = request
        self._run_dir = Path(request.run_dir).expanduser()
        self._run_id = run_id
        self._lease_s = lease_s
        self._folder = folder
        self._channels = channels
        self._forward = forward
        self._processes: list[Process] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._under_mpi = (
            request.spec["allreduce"]["engine"] == "mpi" and request.assignments[0].world_size > 1
        )
        self._held: set[int] = set()
        self._ending = False
        self._starting = asyncio.ensure_future(self._start())

    async def end(self) -> None:
        """TERM, then KILL everything; returns once all of it is gone and reported."""
        self._ending = True
        await self._starting
        await asyncio.gather(*(process.end() for process in self._processes))
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=2 * DRAIN_S)

    def tell_held(self) -> None:
        """Say which workers have been held up, or let go on, since the last call."""
        if self._under_mpi:
            return  # The one process here is mpirun.
        for assignment, process in zip(self._request.assignments, self._processes, strict=False):
            rank, held = assignment.rank, process.is_held()
            if held != (rank in self._held):
                self._held ^= {rank}
                self._forward(StateEvent("stopped" if held else "going on"), rank)

    async def _start(self) -> None:
        """Start every worker. One that can't be started is reported as a failure and an exit."""
        request = self._request
        starts = {
            a.local_rank: WorkerStart(
                a,
                request.spec,
                str(self._run_dir),
                request.secret,
                request.resume_from,
                request.listen,
                request.ports,
                request.store,
                lease_s=self._lease_s,
            )
            for a in request.assignments
        }
        try:
            self._run_dir.mkdir(parents=True, exist_ok=True)
            await self._channels.open(starts)
            if self._under_mpi:
                await self._start_under_mpi()
            else:
                for assignment in request.assignments:
                    if not self._ending:
                        await self._start_one(assignment)
        except (OSError, ValueError) as error:
            self._report_unstarted(f"can't start a worker: {error}")
        if self._ending:
            self._report_unstarted(None)

    def _report_unstarted(self, why: str | None) -> None:
        for assignment in self._request.assignments[len(self._watchers) :]:
            if why is not None:
                self._forward(FailureEvent("refused", why), assignment.rank)
            self._forward(WorkerExited(assignment.rank, None, "SIGTERM", []), assignment.rank)

    async def _start_one(self, assignment: Assignment) -> None:
        log = self._log(assignment)
        process = await Process.start(
            worker_command(), self._environment(assignment.local_rank), self._workdir()
        )
        self._processes.append(process)
        self._watch(assignment, log, process.streams, process.ended)

    async def _start_under_mpi(self) -> None:
        """One mpirun for all; what it says itself goes to the first worker's log."""
        assignments = self._request.assignments
        logs = [self._log(assignment) for assignment in assignments]
        fifos = {
            (a.local_rank, source): Fifo(self._folder / f"{a.local_rank}.{source}")
            for a in assignments
            for source in ("stdout", "stderr")
        }
        process = await Process.start(mpi_command(len(assignments)), self._environment(None), self._workdir())
        self._processes.append(process)
        for fifo in fifos.values():
            process.ended.add_done_callback(fifo.release)
        for assignment, log in zip(assignments, logs, strict=True):
            streams = [
                (source, await fifo.open())
                for (r, source), fifo in fifos.items()
                if r == assignment.local_rank
            ]
            if assignment is assignments[0]:
                streams += process.streams
            self._watch(assignment, log, streams, process.ended)

    def _log(self, assignment: Assignment) -> Log:
        rank = assignment.rank
        return Log(self._run_dir / f"rank-{rank}.log", lambda event: self._forward(event, rank))

    def _watch(self, assignment: Assignment, log: Log, streams: Streams, ended: asyncio.Future[int]) -> None:
        self._watchers.append(asyncio.ensure_future(self._follow(assignment, log, streams, ended)))

    async def _follow(
        self, assignment: Assignment, log: Log, streams: Streams, ended: asyncio.Future[int]
    ) -> None:
        code = await follow_all(streams, log.follow, ended)
        if self._under_mpi:
            code = exit_under_mpi(self._folder / f"{assignment.local_rank}.exit", code)
        await self._channels.ended(assignment.local_rank, DRAIN_S)
        log.close()
        exit_code, signal_name = ending(code)
        rank = assignment.rank
        self._forward(WorkerExited(rank, exit_code, signal_name, log.last_lines), rank)

    def _environment(self, local_rank: int | None) -> dict[str, str]:
        return worker_environment(
            self._request.env,
            run_id=self._run_id,
            socket=self._channels.path,
            threads=self._request.spec.get("threads"),
            local_rank=local_rank,
        )

    def _workdir(self) -> Path | None:
        workdir = self._request.spec.get("workdir")
        return Path(workdir).expanduser() if workdir else None
