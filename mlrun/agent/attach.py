"""``python -m mlrun.agent.attach SOCKET``: a new connection to a running agent, carried byte by byte.

Its exit code is 1 where no agent listens there any more.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_CHUNK = 1 << 16
LINGER_S = 10.0
"""How long an agent may still talk to a launcher that has said all it had to say."""


def main() -> int:
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        agent.connect(sys.argv[1])
    except OSError as error:
        print(f"the agent is gone: {error.strerror}", file=sys.stderr)
        return 1
    threading.Thread(target=_bring, args=[agent], daemon=True).start()
    try:
        while chunk := agent.recv(_CHUNK):
            _write(chunk)
    except OSError:
        pass  # One of the two has gone, and the other will notice.
    return 0


def _bring(agent: socket.socket) -> None:
    try:
        while chunk := os.read(0, _CHUNK):
            agent.sendall(chunk)
        agent.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    time.sleep(LINGER_S)
    os._exit(0)


def _write(chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(1, chunk) :]


if __name__ == "__main__":
    sys.exit(main())
