"""TCP sockets on literal addresses, and what their errors mean in plain words. Names are never looked up.

Only the standard library is imported here: agents measure links with these sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
from typing import Any

_IP_BOUND_IF, _IPV6_BOUND_IF = 25, 125
"""From macOS's netinet/in.h and netinet6/in6.h; Python's socket module doesn't name them."""


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


def force_interface(sock: socket.socket, interface: str) -> bool:
    """Keep ``sock`` to one interface; False where the system doesn't let us.

    Binding an address alone chooses the address, while the routing table goes on choosing the cable.
    """
    try:
        if sys.platform == "darwin":
            level, option = (
                (socket.IPPROTO_IPV6, _IPV6_BOUND_IF)
                if sock.family == socket.AF_INET6
                else (socket.IPPROTO_IP, _IP_BOUND_IF)
            )
            sock.setsockopt(level, option, socket.if_nametoindex(interface))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except OSError:
        return False
    return True


def without_scope(address: str) -> str:
    """``fe80::1%en5`` as ``fe80::1``: a scope means something on its own host alone."""
    return address.partition("%")[0]


def seen_through(address: str, interface: str) -> str:
    """A neighbour's address as this host dials it: a link-local one takes the scope of our ``interface``."""
    bare = without_scope(address)
    return f"{bare}%{interface}" if ipaddress.ip_address(bare).is_link_local and ":" in bare else bare


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


async def send_all(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """``count`` bytes and none of what follows: that belongs to whoever reads next.

    Raises:
        EOFError: the other end closed the connection before.
    """
    data = b""
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not part:
            raise EOFError("the other end closed the connection")
        data += part
    return data
