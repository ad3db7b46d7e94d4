"""TCP sockets on literal addresses, and what their errors mean in plain words. Names are never looked up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
from collections.abc import Sequence
from typing import Any

from mlrun.allreduce.communicator import CommunicatorError


class LinkError(CommunicatorError):
    """A link to a neighbour couldn't be opened in time."""


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """``"10.0.0.1:5000"`` or ``"[fe80::1%en5]:5000"`` as (address, port).

    Raises:
        ValueError: not a literal address with a port; names are never looked up.
    """
    address, _, port = endpoint.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    ipaddress.ip_address(address)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{endpoint!r} has no port")
    return address, int(port)


def resolve(address: str, port: int) -> tuple[int, Any]:
    """(family, socket address) of a literal address."""
    family, _, _, _, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    )[0]
    return family, where


def tcp_socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform == "darwin":
        # Linux grows both buffers by itself; macOS starts small and grows slowly on a Thunderbolt bridge.
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
    return sock


class Listener:
    """Listening TCP sockets, one per literal address, bound before anyone is told where to connect.

    Raises:
        ValueError: an address is a name or a wildcard; neighbours must be told where to connect.
        LinkError: an address isn't this host's, or no port of ``ports`` is free.
    """

    def __init__(self, addresses: Sequence[str], ports: range | None = None) -> None:
        self.sockets: list[socket.socket] = []
        try:
            for address in addresses:
                if ipaddress.ip_address(address).is_unspecified:
                    raise ValueError(f"{address} is no address that a neighbour could connect to")
                self.sockets.append(_listen(address, ports or range(1)))
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> list[str]:
        """``address:port`` or ``[address]:port`` of each socket, in the order of the addresses."""
        return [format_endpoint(sock.getsockname()) for sock in self.sockets]

    def close(self) -> None:
        """Stop listening. Idempotent."""
        for sock in self.sockets:
            sock.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(address: str, ports: range) -> socket.socket:
    reason: OSError | None = None
    for port in ports:
        family, where = resolve(address, port)
        sock = tcp_socket(family)
        try:
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(where)
            sock.listen(128)
        except OSError as error:
            sock.close()
            reason = error
            if error.errno != errno.EADDRINUSE:
                break
        else:
            sock.setblocking(False)
            return sock
    tried = f" (ports {ports.start}-{ports.stop - 1})" if ports.stop > 1 else ""
    raise LinkError(f"can't listen on {address}{tried}: {plain(reason)}")


def format_endpoint(where: Any) -> str:
    address, port = where[0], where[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


_PLAIN = {
    errno.ECONNREFUSED: "refused: no worker listens there (it has ended), or a firewall says no",
    errno.EHOSTUNREACH: "no route: another subnet, a cable out, or macOS's Local Network privacy forbids it",
    errno.ENETUNREACH: "no route: another subnet, or the interface is down",
    errno.ETIMEDOUT: "no answer: the host is asleep, or a firewall drops the packets",
    errno.EADDRNOTAVAIL: "this host doesn't have that address (any more)",
    errno.EADDRINUSE: "the port is taken",
    errno.EACCES: "not permitted: a privileged port, or a firewall says no",
    errno.EPERM: "not permitted: a firewall, or macOS's Local Network privacy",
    errno.ECONNRESET: "the other end broke off: it has ended, or it belongs to another run",
    errno.EMFILE: "too many open files in this process",
}


def plain(error: BaseException | None) -> str:
    """The likely reason in plain words."""
    if isinstance(error, asyncio.TimeoutError):
        return _PLAIN[errno.ETIMEDOUT]
    if isinstance(error, OSError) and error.errno is not None:
        return _PLAIN.get(error.errno, (error.strerror or str(error)).lower())
    return str(error)
