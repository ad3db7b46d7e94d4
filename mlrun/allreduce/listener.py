"""Where one rank accepts its links."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from mlrun.allreduce.communicator import CommunicatorError
from mlrun.allreduce.tcp import force_interface, format_endpoint, plain, resolve, tcp_socket


class LinkError(CommunicatorError):
    """A link to a neighbour couldn't be opened in time."""


class Listener:
    """Listening TCP sockets, one per literal address, bound before anyone is told where to connect.

    ``interfaces``: for each address the interface that its connections are kept to, where one is chosen.

    Raises:
        ValueError: an address is a name or a wildcard; neighbours must be told where to connect.
        LinkError: an address isn't this host's, or no port of ``ports`` is free.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        ports: range | None = None,
        interfaces: Sequence[str | None] | None = None,
    ) -> None:
        self.sockets: list[socket.socket] = []
        try:
            for address, interface in zip(addresses, interfaces or [None] * len(addresses), strict=True):
                if ipaddress.ip_address(address).is_unspecified:
                    raise ValueError(f"{address} is no address that a neighbour could connect to")
                self.sockets.append(_listen(address, ports or range(1), interface))
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


def _listen(address: str, ports: range, interface: str | None) -> socket.socket:
    reason: OSError | None = None
    for port in ports:
        family, where = resolve(address, port)
        sock = tcp_socket(family)
        try:
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if interface is not None:
                force_interface(sock, interface)
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
