"""The cluster itself: hosts are apart, links are shaped, and nothing of it survives its maker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.cluster import HOST_PYTHON, OFFICE, Cluster, Network, missing
from tests.cluster.node import Node

pytestmark = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def test_hosts_are_reached_by_ssh_and_are_apart(cluster: Cluster) -> None:
    for name, host in cluster.hosts.items():
        script = "hostname; echo $HOME; echo $PATH; touch /tmp/mine-$(hostname); echo /tmp/mine-*"
        seen = cluster.launcher.run(["ssh", "-o", "BatchMode=yes", name, script]).stdout.splitlines()
        assert seen[:3] == [name, str(host.home), "/usr/bin:/bin:/usr/sbin:/sbin"]
        assert seen[3] == f"/tmp/mine-{name}"


def test_processes_of_a_host_are_listed_and_end_with_it() -> None:
    with Cluster(2) as cluster:
        ssh = cluster.launcher.popen(
            ["ssh", "mac1", "sleep 1000 & echo started; wait"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert ssh.stdout is not None
        assert ssh.stdout.readline() == "started\n"
        assert any("sleep 1000" in command for command in cluster.leftovers()["mac1"])
        assert "mac2" not in cluster.leftovers()
        assert ssh.pid in [process.pid for process in cluster.launcher.processes()]
        cluster.hosts["mac1"].power_off()
        assert cluster.leftovers() == {}
        assert cluster.launcher.run(["ssh", "-o", "ConnectTimeout=1", "mac1", "true"]).returncode == 255
        assert cluster.launcher.run(["ssh", "mac2", "true"]).returncode == 0


def test_traffic_takes_the_interface_of_its_address() -> None:
    networks = [
        OFFICE,
        Network(OFFICE.subnet, "en1", mbit=1000),
        Network("10.72.0.0/30", {"mac1": "en5", "mac2": "en6"}),
    ]
    with Cluster(3, networks) as cluster:
        mac1, mac2 = cluster.hosts["mac1"], cluster.hosts["mac2"]
        assert set(mac1.addresses) == {"en0", "en1", "en5"}
        assert set(cluster.hosts["mac3"].addresses) == {"en0", "en1"}
        for mine, theirs in [("en0", "en0"), ("en1", "en1"), ("en5", "en6")]:
            before = {name: mac2.byte_counts(name)[1] for name in mac2.addresses}
            _send(mac1, mac2, mine, theirs, size=1_000_000)
            gained = {name: mac2.byte_counts(name)[1] - count for name, count in before.items()}
            assert gained[theirs] > 1_000_000
            assert all(count < 100_000 for name, count in gained.items() if name != theirs)


def test_unplugged_interface_carries_nothing() -> None:
    with Cluster(1) as cluster:
        cluster.hosts["mac1"].set_interface("en0", up=False)
        assert cluster.launcher.run(["ssh", "-o", "ConnectTimeout=1", "mac1", "true"]).returncode == 255
        cluster.hosts["mac1"].set_interface("en0", up=True)
        assert cluster.launcher.run(["ssh", "-o", "ConnectTimeout=10", "mac1", "true"]).returncode == 0


def test_nothing_survives_a_killed_maker() -> None:
    code = (
        "import signal\n"
        "from tests.cluster.cluster import Cluster\n"
        "with Cluster(2) as c:\n"
        "    p = c.launcher.popen(['ssh', 'mac1', 'sleep 1000'])\n"
        "    print(c.root, *[h.pid for h in c.hosts.values()], p.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    root = Path(__file__).parents[2]
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)
    assert maker.stdout is not None
    folder, *pids = maker.stdout.readline().split()
    processes = [psutil.Process(int(pid)) for pid in pids]
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    with Cluster(1):
        assert not Path(folder).exists()


RECEIVE = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())
listener.bind((sys.argv[2], 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
print(sum(iter(lambda: len(connection.recv(65536)), 0)))
"""
SEND = """
import socket, sys
connection = socket.socket()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())
connection.settimeout(20)
connection.connect((sys.argv[2], int(sys.argv[3])))
connection.sendall(bytes(int(sys.argv[4])))
"""


def _send(source: Node, target: Node, mine: str, theirs: str, size: int) -> None:
    """Send bytes from one host's interface to another's, both sockets tied to their interface."""
    address = target.addresses[theirs]
    receiver = target.popen([HOST_PYTHON, "-c", RECEIVE, theirs, address], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    sent = source.run([HOST_PYTHON, "-c", SEND, mine, address, port, str(size)])
    assert sent.returncode == 0, sent.stderr
    assert receiver.communicate(timeout=20)[0].strip() == str(size)


def test_a_host_sees_its_own_interfaces(cluster: Cluster) -> None:
    mac1 = cluster.hosts["mac1"]
    code = "from mlrun.probe.addresses import *\nfor a in addresses(): print(a.interface, a.kind, a.address)"
    done = mac1.run([str(mac1.install()), "-c", code])
    assert f"en0 ethernet {mac1.addresses['en0']}" in done.stdout.splitlines()
    assert f"en5 ethernet {mac1.addresses['en5']}" in done.stdout.splitlines()
