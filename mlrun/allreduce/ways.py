"""How a neighbour can be dialled: which of its addresses, and through which interface of ours."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlrun.allreduce.tcp import (
    force_interface,
    parse_endpoint,
    resolve,
    seen_through,
    tcp_socket,
    without_scope,
)
from mlrun.protocol import LinkEnd, LinkPath

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """One address of a neighbour; ``near`` is the interface of ours that leads there, where one is chosen."""

    address: str
    port: int
    near: LinkEnd | None

    def prepare(self) -> tuple[socket.socket, Any]:
        """A socket that isn't connected yet, and where to connect it."""
        family, where = resolve(self.address, self.port)
        sock = tcp_socket(family)
        try:
            sock.setblocking(False)
            if self.near is not None and self.near.interface is not None:
                if not force_interface(sock, self.near.interface):
                    _note_unforced(self.near.interface)
                sock.bind(resolve(self.near.address, 0)[1])
        except BaseException:
            sock.close()
            raise
        return sock, where


@functools.cache
def _note_unforced(interface: str) -> None:
    """Say so once for each interface."""
    logger.warning(
        "this system doesn't let a socket be kept to %s: the routing table chooses the cable", interface
    )


def to_neighbours(paths: Sequence[Sequence[LinkPath]], rank: int) -> dict[int, Sequence[LinkPath]]:
    """The paths of ``Plan.paths`` that lead from ``rank`` to each of its neighbours."""
    size = len(paths)
    return {(rank - 1) % size: paths[rank - 1], (rank + 1) % size: paths[rank]} if size > 1 else {}


def total_rate(paths: Sequence[LinkPath]) -> float | None:
    """Bytes per second of paths used at once, which carry equal shares; None where one is unknown."""
    rates = [path.bytes_per_s for path in paths if path.bytes_per_s is not None]
    return len(paths) * min(rates) if rates and len(rates) == len(paths) else None


def ways(endpoints: Sequence[str], paths: Sequence[LinkPath] | None, owned: bool) -> list[Way]:
    """How a neighbour that listens on ``endpoints`` can be dialled."""
    targets = [parse_endpoint(endpoint) for endpoint in endpoints]
    if paths is None:
        return [Way(address, port, None) for address, port in targets]
    ports = {without_scope(address): port for address, port in targets}
    found = []
    for path in paths:
        near, far = path.ends if owned else reversed(path.ends)
        address = without_scope(far.address)
        if address not in ports:
            raise ValueError(f"nobody listens on {address}, which a path of the plan leads to")
        target = seen_through(address, near.interface) if near.interface is not None else address
        found.append(Way(target, ports[address], near))
    return found
