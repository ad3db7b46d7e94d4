"""One machine of the test cluster: namespaces held by a process, and what tests do with them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import site
import subprocess
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).parents[2]
INSTALLED = ".local/share/mlrun/venv"
"""Where mlrun looks for its own environment on a host."""
START_DEADLINE_S = 30.0


@dataclass
class Node:
    """A machine of the cluster: a host, the launcher or the switch."""

    name: str
    folder: Path
    shell: str = "/bin/bash"
    addresses: dict[str, str] = field(default_factory=dict)
    """Interface -> IPv4 address."""
    _holder: subprocess.Popen[str] | None = None
    _own_processes: bool = False
    pid: int = 0
    """The process that holds the namespaces: sshd on a host."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def command(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """``argv`` as a command for this machine; it ends when the thread that started it ends."""
        die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        enter = ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", f"--wd={cwd or self.home}"]
        if self._own_processes:
            enter += ["--pid", *die_with_parent]
        return [*die_with_parent, *enter, *argv]

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "USER": "root", "LANG": "C.UTF-8"}

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start ``argv`` on this machine; on the launcher the process id is the command's own."""
        defaults: dict[str, Any] = {"text": True, "env": self.environment()}
        return subprocess.Popen(self.command(argv, options.pop("cwd", None)), **defaults | options)

    def run(
        self, argv: Sequence[str], timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` on this machine to its end."""
        defaults: dict[str, Any] = {"text": True, "env": self.environment(), "capture_output": True}
        command = self.command(argv, options.pop("cwd", None))
        return subprocess.run(command, check=False, timeout=timeout, **defaults | options)

    def install(self, folder: str | Path = INSTALLED, *, mlrun: bool = True) -> Path:
        """Make an environment below this home, with this checkout and its dependencies; its interpreter."""
        environment = self.home / folder
        venv.create(environment, symlinks=True)
        if mlrun:
            # As a folder of packages in its own right, so that an editable installation in it works too.
            lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
            packages = next(environment.glob("lib/python*/site-packages"))
            (packages / "checkout.pth").write_text("\n".join([*lines, str(CHECKOUT), ""]))
        return environment / "bin" / "python"

    def processes(self) -> list[psutil.Process]:
        """Everything that runs here, but for sshd and what holds the namespaces."""
        if self._holder is None or not self.is_up:
            return []
        space = os.stat(f"/proc/{self.pid}/ns/net").st_ino
        holders = {self.pid, self._holder.pid}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                here = os.stat(f"/proc/{process.pid}/ns/net").st_ino == space
                if here and process.pid not in holders and not process.name().startswith(("sshd", "nsenter")):
                    found.append(process)
        return found

    def byte_counts(self, interface: str) -> tuple[int, int]:
        """Bytes sent and received by an interface so far."""
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                counters = numbers.split()
                return int(counters[8]), int(counters[0])
        raise KeyError(f"{self.name} has no interface {interface}")

    def set_interface(self, interface: str, *, up: bool) -> None:
        """Plug or unplug a cable."""
        self.batch("ip", [f"link set {interface} {'up' if up else 'down'}"])

    @property
    def is_up(self) -> bool:
        return self._holder is not None and self._holder.poll() is None

    def power_off(self) -> None:
        """End everything on this machine at once, without a goodbye."""
        if self._holder is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._holder.kill()
            self._holder.wait()

    def batch(self, tool: str, lines: Iterable[str]) -> None:
        """Many commands of ``ip`` or ``tc`` in this machine's network."""
        argv = ["nsenter", "-t", str(self.pid), "--net", tool, "-batch", "-"]
        subprocess.run(argv, input="\n".join(lines), text=True, check=True, timeout=START_DEADLINE_S)

    def boot(self, script: str, *, own_processes: bool) -> None:
        """Make the namespaces, held by ``script``, which says ``ready`` before its last command."""
        self._own_processes = own_processes
        spaces = ["--net", "--uts", "--mount"]
        if own_processes:
            spaces += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "/bin/sh", "-euc", script],
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            stdin=subprocess.DEVNULL,
            text=True,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def await_boot(self) -> None:
        assert self._holder is not None
        assert self._holder.stdout is not None
        ready, _, _ = select.select([self._holder.stdout], [], [], START_DEADLINE_S)
        if not ready or self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self.name} didn't start: {self.log.read_text()}")
        children = psutil.Process(self._holder.pid).children()
        self.pid = children[0].pid if children else self._holder.pid
