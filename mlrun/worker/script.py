"""Somebody's own training script as one rank of a run, with what torchrun, Horovod and MPI would give it."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlrun import runs
from mlrun.allreduce import own
from mlrun.allreduce.communicator import Communicator
from mlrun.errors import RequestError, RunFailedError
from mlrun.protocol import Event, StateEvent, WorkerStart
from mlrun.spec.script import Script
from mlrun.worker import reports
from mlrun.worker.context import Context

LOOK_S = 0.2
"""How often the wish to stop is looked for."""
_OTHER_WAYS = ("mlx.core", "mpi4py.MPI", "jax")
"""Modules that average without torch and without mlrun."""


class ScriptRun:
    """One run of a script by one rank."""

    def __init__(
        self,
        script: Script,
        start: WorkerStart,
        communicator: Communicator | None,
        send: Callable[[Event], None],
        stop_reason: Callable[[], str | None],
    ) -> None:
        self._script = script
        self._start = start
        self._communicator = communicator
        self._send = send
        self._stop_reason = stop_reason
        self._ended = threading.Event()

    def run(self) -> None:
        """Run it to its end. Collective: the ranks agree first on where they meet.

        Raises:
            SystemExit: the script's own end, where it isn't a good one.
            RequestError: there is no such script.
            RunFailedError: it ended and no rank has averaged anything.
            Exception: whatever it raised.
        """
        os.environ.update(self._surroundings())
        if self._communicator is not None:
            own.lend(self._communicator.split(range(self._communicator.size)))
        issued = Communicator.issued
        report = reports.begin(self._send)
        self._send(StateEvent("training", {"unit": "samples"}))
        threading.Thread(target=self._watch, name="mlrun-script-watch", daemon=True).start()
        reason = "complete"
        try:
            self._execute()
            _wait_for_threads()
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        except KeyboardInterrupt:
            if self._stop_reason() is None:
                raise
            reason = "stopped"
        finally:
            self._ended.set()
            own.lend(None)
        if reason == "complete":
            self._refuse_separate_models(Communicator.issued - issued)
        self._send(StateEvent("done", {"reason": reason, **report.end()}))

    def _execute(self) -> None:
        if self._script.horovod:
            from mlrun.horovod import install  # noqa: PLC0415 - only where it was asked for

            install()
        if self._script.module is not None:
            sys.argv = [self._script.module, *self._script.args]
            sys.path[0:0] = [os.getcwd()]
            runpy.run_module(self._script.module, run_name="__main__", alter_sys=True)
            return
        path = Path(str(self._script.script))
        if not path.is_file():
            raise RequestError(
                f"run.script: there is no {path} in {os.getcwd()}",
                fix="name it from workdir, or correct workdir",
            )
        sys.argv = [str(path), *self._script.args]
        sys.path[0:0] = [str(path.resolve().parent)]
        runpy.run_path(str(path), run_name="__main__")

    # What it finds in its environment -----------------------------------------------------------

    def _surroundings(self) -> dict[str, str]:
        """torchrun's variables beside those that every worker has, Horovod's, Open MPI's and MLX's."""
        assignment = self._start.assignment
        address = self._address()
        port, mlx_port = _free_ports(address, 2)
        mine = {"host": assignment.host, "address": address, "port": port, "mlx": mlx_port}
        everyone = self._gather(mine)
        hosts = list(dict.fromkeys(each["host"] for each in everyone))
        rank, size = assignment.rank, assignment.world_size
        local, local_size = assignment.local_rank, assignment.local_world_size
        across = {"RANK": str(hosts.index(assignment.host)), "SIZE": str(len(hosts))}
        mlx = Path(self._start.run_dir) / "mlx-hosts.json"
        if local == 0:
            ports = [[f"{each['address']}:{each['mlx']}"] for each in everyone]
            runs.write_atomically(mlx, json.dumps(ports))
        self._gather(mine)  # so that the file is there
        return {
            "MASTER_ADDR": everyone[0]["address"],
            "MASTER_PORT": str(everyone[0]["port"]),
            "GROUP_RANK": across["RANK"],
            "GROUP_WORLD_SIZE": across["SIZE"],
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(local_size),
            "HOROVOD_CROSS_RANK": across["RANK"],
            "HOROVOD_CROSS_SIZE": across["SIZE"],
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
            "MLX_RANK": str(rank),
            "MLX_HOSTFILE": str(mlx),
        }

    def _address(self) -> str:
        """An IPv4 address by which the others reach this rank: torch's store and MLX want one."""
        addresses = [end.address for end in self._start.listen if ":" not in end.address]
        return addresses[0] if addresses else "127.0.0.1"

    def _gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        assignment = self._start.assignment
        context = Context(
            rank=assignment.rank,
            size=assignment.world_size,
            host=assignment.host,
            run_dir=Path(self._start.run_dir),
            group=self._communicator,
            send=self._send,
            stop_reason=self._stop_reason,
        )
        return context.gather(value, "where the ranks meet")

    # Whether it averages -------------------------------------------------------------------------

    def _watch(self) -> None:
        """A wish to stop is Ctrl-C to the script, once."""
        while not self._ended.wait(LOOK_S):
            if self._stop_reason() is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    def _refuse_separate_models(self, issued: int) -> None:
        if self._communicator is None or self._script.independent or issued > 0 or _torch_group_of_another():
            return
        if any(name in sys.modules for name in _OTHER_WAYS):
            return
        size = self._start.assignment.world_size
        raise RunFailedError(
            f"{self._script.what}: {size} ranks ran and none averaged anything: "
            f"these are {size} separate models",
            fix="wrap the model in DistributedDataParallel after torch.distributed.init_process_group(), "
            "or say --independent",
        )


def _torch_group_of_another() -> bool:
    """Whether torch.distributed was started on another backend: nobody has imported our group then."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    started = getattr(distributed, "_default_pg_init_method", None) is not None
    return started and "mlrun.backends.torch.process_group" not in sys.modules


def _wait_for_threads() -> None:
    """As Python does at its end: a script isn't through before its own threads are."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _free_ports(address: str, count: int) -> list[int]:
    """Ports that were free a moment ago, all of them at once."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((address, 0))
        return [probe.getsockname()[1] for probe in probes]
