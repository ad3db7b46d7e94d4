"""A room of Macs on one Linux machine: namespaces with an sshd each, joined by shaped links.

Every host has its own network, processes, host name, home folder, ``/tmp``, ``/run`` and host keys; the
launcher has its own network and home, with a key that every host admits. The namespaces have no names:
they live in the processes that hold them, and the kernel ends those when this process ends, however it
ends. Needs root, OpenSSH's server and iproute2.

``python -m tests.cluster.cluster 4`` builds four hosts and opens a shell on the launcher.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from tests.cluster.node import CHECKOUT, START_DEADLINE_S, Node

# Hosts have a /tmp of their own, so their folders can't be below it.
ROOTS = Path("/var/tmp")
PREFIX = "mlrun-cluster-"
HOST_PYTHON = os.path.realpath(sys.executable)
"""An interpreter that hosts have too, with nothing but the standard library."""
PASSWORD = "the room's password"
MACOS_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""All that a command over ssh gets on a Mac."""


def missing() -> str | None:
    """Why no cluster can be built here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the test cluster needs Linux and root"
    tools = ("/usr/sbin/sshd", "ssh", "ssh-keygen", "ip", "tc", "unshare", "nsenter", "setpriv")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"the test cluster needs {', '.join(absent)}" if absent else None


@dataclass(frozen=True)
class Network:
    """One switch, or, between two hosts, one cable.

    Networks with the same ``subnet`` are one switch: that gives hosts two interfaces on one subnet.
    ``interfaces`` is the interface's name on every host, or a mapping of host to name for those that take
    part. ``mbit`` limits each port in both directions.
    """

    subnet: str
    interfaces: str | Mapping[str, str]
    mbit: float | None = None

    def interface_of(self, host: str) -> str | None:
        return self.interfaces if isinstance(self.interfaces, str) else self.interfaces.get(host)


OFFICE = Network("10.71.0.0/24", "en0", mbit=1000)
"""The network that the launcher is on too: always the first one."""


class Cluster:
    """N hosts ``mac1`` … ``macN``, a launcher, and the networks between them; a context manager."""

    def __init__(
        self,
        hosts: int = 4,
        networks: Sequence[Network] = (OFFICE,),
        shells: Mapping[str, str] | None = None,
        *,
        strangers: bool = False,
    ) -> None:
        """Hosts that are ``strangers`` don't know the launcher's key, nor it theirs; they admit PASSWORD."""
        _sweep()
        self._strangers = strangers
        self.root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=ROOTS))
        self.networks = networks
        names = [f"mac{i}" for i in range(1, hosts + 1)]
        shells = shells or {}
        self.hosts = {name: self._node(name, shells.get(name, "/bin/bash")) for name in names}
        self.launcher = self._node("launcher")
        self._switch = self._node("switch")

    def __enter__(self) -> Cluster:
        try:
            self._give_addresses()
            self._write_files()
            self._boot()
            self._wire()
            self._await_sshd()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self.launcher.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for node in (*self.hosts.values(), self.launcher, self._switch):
            node.power_off()
        shutil.rmtree(self.root, ignore_errors=True)

    def leftovers(self) -> dict[str, list[str]]:
        """Host -> command lines of what still runs there; hosts with nothing are left out."""
        found: dict[str, list[str]] = {}
        for name, host in self.hosts.items():
            for process in host.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.setdefault(name, []).append(shlex.join(process.cmdline()))
        return found

    def _node(self, name: str, shell: str = "/bin/bash") -> Node:
        node = Node(name, self.root / name, shell)
        (node.home / ".ssh").mkdir(parents=True, mode=0o700)
        (node.folder / "tmp").mkdir(mode=0o1777)
        return node

    def _give_addresses(self) -> None:
        free = {n.subnet: ipaddress.ip_network(n.subnet).hosts() for n in self.networks}
        self.launcher.addresses["en0"] = str(next(free[self.networks[0].subnet]))
        for network in self.networks:
            for name, host in self.hosts.items():
                interface = network.interface_of(name)
                if interface is not None:
                    host.addresses[interface] = str(next(free[network.subnet]))

    def _write_files(self) -> None:
        everyone = [*self.hosts.values(), self.launcher]
        names = [f"{next(iter(node.addresses.values()))} {node.name}" for node in everyone]
        key = _make_key(self.launcher.home / ".ssh" / "id_ed25519")
        known = []
        for host in self.hosts.values():
            public = _make_key(host.folder / "host_key")
            if self._strangers:
                (host.folder / "shadow").write_text(f"root:{_hash_of(PASSWORD)}:19000:0:99999:7:::\n")
            else:
                known += [f"{address} {public}" for address in (host.name, *host.addresses.values())]
                (host.home / ".ssh" / "authorized_keys").write_text(f"{key}\n")
            (host.folder / "sshd_config").write_text(_sshd_config(host, passwords=self._strangers))
        if known:
            (self.launcher.home / ".ssh" / "known_hosts").write_text("\n".join(known) + "\n")
        for node in everyone:
            others = [
                line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")
            ]
            passwd = [f"root:x:0:0:root:{node.home}:{node.shell}", *others]
            (node.folder / "passwd").write_text("\n".join(passwd) + "\n")
            (node.folder / "hosts").write_text(
                "\n".join(["127.0.0.1 localhost", "::1 localhost", *names]) + "\n"
            )

    def _boot(self) -> None:
        for host in self.hosts.values():
            last = f"exec /usr/sbin/sshd -D -e -f {host.folder}/sshd_config"
            host.boot(_identity(host, own_disk=True) + last, own_processes=True)
        self.launcher.boot(
            _identity(self.launcher, own_disk=False) + "exec sleep infinity", own_processes=False
        )
        self._switch.boot("ip link set lo up; echo ready; exec sleep infinity", own_processes=False)
        for node in (*self.hosts.values(), self.launcher, self._switch):
            node.await_boot()

    def _wire(self) -> None:
        bridges: dict[str, str] = {}
        ports = (f"port{number}" for number in itertools.count())
        for index, network in enumerate(self.networks):
            if network.subnet not in bridges:
                bridges[network.subnet] = bridge = f"switch{index}"
                self._switch.batch("ip", [f"link add {bridge} type bridge", f"link set {bridge} up"])
            members = {name: network.interface_of(name) for name in self.hosts}
            for name, interface in members.items():
                if interface is not None:
                    self._plug(self.hosts[name], interface, network, bridges[network.subnet], next(ports))
            if index == 0:
                self._plug(self.launcher, "en0", network, bridges[network.subnet], next(ports))

    def _plug(self, node: Node, interface: str, network: Network, bridge: str, port: str) -> None:
        length = ipaddress.ip_network(network.subnet).prefixlen
        self._switch.batch(
            "ip",
            [
                f"link add {port} type veth peer name {interface} netns {node.pid}",
                f"link set {port} master {bridge} up",
            ],
        )
        node.batch(
            "ip",
            [f"addr add {node.addresses[interface]}/{length} dev {interface}", f"link set {interface} up"],
        )
        if network.mbit is not None:
            # A tenth of a second of data: less would let 64 KiB segments of veth fall out of the bucket.
            limit = f"rate {network.mbit}mbit burst {max(131072, int(network.mbit * 1250))} latency 100ms"
            self._switch.batch("tc", [f"qdisc add dev {port} root tbf {limit}"])
            node.batch("tc", [f"qdisc add dev {interface} root tbf {limit}"])

    def _await_sshd(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        for host in self.hosts.values():
            while "Server listening on 0.0.0.0" not in host.log.read_text():
                if not host.is_up or time.monotonic() > deadline:
                    raise RuntimeError(f"sshd of {host.name} didn't start: {host.log.read_text()}")
                time.sleep(0.01)


def _identity(node: Node, *, own_disk: bool) -> str:
    """Shell lines that make the namespaces look like a machine of their own."""
    lines = [
        f"hostname {node.name}",
        f"mount --bind {node.folder}/passwd /etc/passwd",
        f"mount --bind {node.folder}/hosts /etc/hosts",
        # What /sys shows of the network belongs to the namespace it was mounted in.
        "mount -t sysfs sysfs /sys",
        "ip link set lo up",
        # An interface answers for its own address only, as separate cables would.
        "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore",
        "echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce",
        "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad",
    ]
    if (node.folder / "shadow").exists():
        lines.append(f"mount --bind {node.folder}/shadow /etc/shadow")
    if own_disk and sys.prefix != sys.base_prefix:
        # No host has a Python where this environment has its own; ``install`` makes one.
        lines += [f"mkdir {node.folder}/nothing", f"mount --bind {node.folder}/nothing {sys.prefix}/bin"]
    if own_disk:
        if CHECKOUT.is_relative_to("/tmp"):
            kept = node.folder / "tmp" / CHECKOUT.relative_to("/tmp")
            lines += [f"mkdir -p {kept}", f"mount --rbind {CHECKOUT} {kept}"]
        lines += [f"mount --rbind {node.folder}/tmp /tmp", "mount -t tmpfs tmpfs /run", "mkdir /run/sshd"]
    return "\n".join([*lines, "echo ready", ""])


def _sshd_config(host: Node, *, passwords: bool) -> str:
    return "\n".join(
        [
            "Port 22",
            f"HostKey {host.folder}/host_key",
            "AuthorizedKeysFile .ssh/authorized_keys",
            f"PermitRootLogin {'yes' if passwords else 'prohibit-password'}",
            f"PasswordAuthentication {'yes' if passwords else 'no'}",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "StrictModes no",
            "MaxStartups 200",
            "PidFile none",
            f"SetEnv PATH={MACOS_PATH}",
            "",
        ]
    )


def _hash_of(password: str) -> str:
    argv = ["openssl", "passwd", "-6", "-stdin"]
    done = subprocess.run(argv, input=password, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _make_key(path: Path) -> str:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cluster", "-f", str(path)]
    subprocess.run(argv, check=True, timeout=START_DEADLINE_S)
    return path.with_name(path.name + ".pub").read_text().strip()


def _sweep() -> None:
    """Remove the folders of clusters whose process was killed; their namespaces went with it."""
    for folder in ROOTS.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        sys.exit(f"Skipped: {reason}.")
    with Cluster(hosts=int(sys.argv[1]) if len(sys.argv) > 1 else 4) as cluster:
        sys.stdout.write(f"Launcher of {', '.join(cluster.hosts)}; try: ssh mac1 hostname\n")
        sys.stdout.flush()
        cluster.launcher.popen(["bash", "--norc"]).wait()
