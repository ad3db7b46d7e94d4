"""A rank in a process of its own, which tests may kill or stop. Sockets come as inherited descriptors."""

from __future__ import annotations

import json
import socket
import sys

import numpy as np

from mlrun.allreduce.communicator import Buffer, CommunicatorError
from mlrun.allreduce.links import RingLinks
from mlrun.allreduce.ring import RingCommunicator


def main() -> None:
    order = json.loads(sys.argv[1])
    links = RingLinks(*([socket.socket(fileno=fd) for fd in fds] for fds in order["links"]))
    print("ready", flush=True)
    sys.stdin.readline()
    hosts = [f"host{rank}" for rank in range(order["size"])]
    ring = RingCommunicator(order["rank"], order["size"], hosts, links, settings=order["settings"])
    data = np.ones(1_000_000, np.float32)
    try:
        for step in range(10_000_000):
            data.fill(1)
            ring.all_reduce(Buffer.of(data), name=f"step {step}").wait()
            if step == 3:
                print("running", flush=True)
    except CommunicatorError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)


if __name__ == "__main__":
    main()
