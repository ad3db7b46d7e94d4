"""Links between neighbours: they open, from either side, and only among the ranks of one run."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from mlrun.allreduce.links import LinkError, Listener, RingLinks, connect_ring, parse_endpoint
from mlrun.protocol import LinkEnd, LinkPath

SECRET = secrets.token_hex(32)
HELLO = struct.Struct(">8sQIIH32s")


class Ring:
    """n ranks on loopback, each joining in its own thread."""

    def __init__(self, size: int) -> None:
        self.listeners = [Listener(["127.0.0.1"]) for _ in range(size)]
        self.endpoints = [listener.endpoints for listener in self.listeners]
        self.hosts = [f"mac-{rank}" for rank in range(size)]
        self.pool = ThreadPoolExecutor(size)

    def join(self, rank: int, **changes: object) -> Future[RingLinks]:
        arguments: dict[str, object] = {"generation": 0, "links": 1, "timeout_s": 20.0, "secret": SECRET}
        arguments |= {"endpoints": self.endpoints} | changes
        return self.pool.submit(connect_ring, self.listeners[rank], rank, hosts=self.hosts, **arguments)  # type: ignore[arg-type]

    def join_all(self, **changes: object) -> list[RingLinks]:
        return [f.result() for f in [self.join(rank, **changes) for rank in range(len(self.hosts))]]

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.pool.shutdown()


@pytest.fixture
def ring() -> Iterator[Callable[[int], Ring]]:
    rings: list[Ring] = []

    def make(size: int) -> Ring:
        rings.append(Ring(size))
        return rings[-1]

    yield make
    for each in rings:
        each.close()


def connected(a: socket.socket, b: socket.socket) -> bool:
    """A token goes both ways, and nothing else lies in the stream."""
    for source, target in ((a, b), (b, a)):
        token = secrets.token_bytes(16)
        source.sendall(token)
        if target.recv(64) != token:
            return False
    return True


def check_ring(joined: list[RingLinks], links: int) -> None:
    size = len(joined)
    for rank, mine in enumerate(joined):
        theirs = joined[(rank + 1) % size]
        their_side = theirs.next if size == 2 else theirs.previous
        assert len(mine.next) == len(their_side) == links
        assert all(connected(a, b) for a, b in zip(mine.next, their_side, strict=True))
        assert all(
            s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) and s.getblocking() for s in mine.next
        )
    if size == 2:
        assert not joined[0].previous
        assert not joined[1].previous
    for each in joined:
        each.close()


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("links", [1, 3])
def test_all_ranks_get_matching_sockets(ring: Callable[[int], Ring], size: int, links: int) -> None:
    check_ring(ring(size).join_all(links=links), links)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
@pytest.mark.parametrize("size", [2, 3])
def test_each_path_carries_a_link_from_its_own_address(size: int) -> None:
    ends = [[LinkEnd(f"127.3.{path}.{rank + 1}", "lo") for path in range(2)] for rank in range(size)]
    paths = [
        [LinkPath([near, far]) for near, far in zip(ends[rank], ends[(rank + 1) % size], strict=True)]
        for rank in range(size)
    ]
    listeners = [Listener([e.address for e in mine], None, [e.interface for e in mine]) for mine in ends]
    endpoints = [listener.endpoints for listener in listeners]
    hosts = [f"mac-{rank}" for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        work = [
            pool.submit(
                connect_ring, li, r, endpoints, hosts, SECRET, generation=0, paths=paths, timeout_s=20.0
            )
            for r, li in enumerate(listeners)
        ]
        joined = [w.result() for w in work]
    for rank, mine in enumerate(joined):
        theirs = ends[(rank + 1) % size]
        assert [sock.getsockname()[0] for sock in mine.next] == [end.address for end in ends[rank]]
        assert [sock.getpeername()[0] for sock in mine.next] == [end.address for end in theirs]
    check_ring(joined, 2)
    for listener in listeners:
        listener.close()


def test_every_edge_needs_a_path_to_a_listening_neighbour(ring: Callable[[int], Ring]) -> None:
    each = ring(3)
    path = LinkPath([LinkEnd("127.0.0.1"), LinkEnd("127.0.0.9")])
    with pytest.raises(ValueError, match="3 ranks need a path each"):
        each.join(0, paths=[[path]]).result()
    with pytest.raises(ValueError, match=r"nobody listens on 127\.0\.0\.9"):
        each.join(0, paths=[[path]] * 3).result()


def test_one_rank_needs_no_links(ring: Callable[[int], Ring]) -> None:
    assert ring(1).join_all() == [RingLinks()]


def test_ipv6() -> None:
    try:
        listeners = [Listener(["::1"]) for _ in range(2)]
    except LinkError:
        pytest.skip("this machine has no IPv6 loopback")
    endpoints = [listener.endpoints for listener in listeners]
    assert endpoints[0][0].startswith("[::1]:")
    with ThreadPoolExecutor(2) as pool:
        work = [
            pool.submit(
                connect_ring, listeners[r], r, endpoints, ["a", "b"], SECRET, generation=0, timeout_s=20.0
            )
            for r in range(2)
        ]
        check_ring([w.result() for w in work], 1)
    for listener in listeners:
        listener.close()


def closed_port() -> str:
    with Listener(["127.0.0.1"]) as listener:
        return listener.endpoints[0]


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_nobody_can_dial_dials_itself(ring: Callable[[int], Ring], size: int) -> None:
    each = ring(size)
    each.endpoints[1] = [closed_port()]
    check_ring(each.join_all(), 1)


def test_a_rank_that_may_not_dial_is_dialled(ring: Callable[[int], Ring]) -> None:
    """Local Network Privacy: rank 0 has no way out, so rank 1 dials although rank 0 owns the link."""
    each = ring(2)
    nowhere = [each.endpoints[0], [closed_port()]]
    check_ring([f.result() for f in (each.join(0, endpoints=nowhere), each.join(1))], 1)


def test_the_second_endpoint_is_tried_where_the_first_is_dead(ring: Callable[[int], Ring]) -> None:
    each = ring(2)
    each.endpoints = [[closed_port(), *own] for own in each.endpoints]
    check_ring(each.join_all(links=2), 2)


def test_simultaneous_dials_end_in_one_link(
    ring: Callable[[int], Ring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlrun.allreduce.links._DIAL_BACK_AFTER_S", 0.0)
    for _ in range(20):
        each = ring(4)
        check_ring(each.join_all(links=2), 2)
        each.close()


def test_a_listener_serves_the_next_generation(ring: Callable[[int], Ring]) -> None:
    each = ring(3)
    check_ring(each.join_all(generation=0), 1)
    check_ring(each.join_all(generation=1), 1)


def test_inside_a_running_event_loop() -> None:
    async def notebook() -> list[RingLinks]:
        each = Ring(2)
        other = each.join(1)
        mine = connect_ring(
            each.listeners[0], 0, each.endpoints, each.hosts, SECRET, generation=0, timeout_s=20.0
        )
        joined = [mine, other.result()]
        each.close()
        return joined

    check_ring(asyncio.run(notebook()), 1)


# Strangers ----------------------------------------------------------------------------------------


def dial(endpoint: str) -> socket.socket:
    return socket.create_connection(parse_endpoint(endpoint), timeout=10)


def until_closed(sock: socket.socket) -> None:
    """The other end says no more and closes; unread bytes make that a reset."""
    with contextlib.suppress(ConnectionResetError):
        assert sock.recv(4096) == b""


def garbage(endpoint: str, _: threading.Event) -> None:
    with dial(endpoint) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + secrets.token_bytes(4096))
        until_closed(sock)


def hangs_up(endpoint: str, _: threading.Event) -> None:
    with dial(endpoint) as sock:
        sock.sendall(b"mlr")


def slow_loris(endpoint: str, over: threading.Event) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(dial(endpoint)).sendall(b"m")
        over.wait(30)


def guesses_the_secret(endpoint: str, _: threading.Event) -> None:
    with dial(endpoint) as sock:
        sock.sendall(HELLO.pack(b"mlrunL1\n", 0, 0, 1, 0, bytes(32)))
        assert len(sock.recv(64, socket.MSG_WAITALL)) == 64
        sock.sendall(secrets.token_bytes(32) + b"CA")
        until_closed(sock)


def reflects(endpoint: str, _: threading.Event) -> None:
    """Offers the acceptor its own proof."""
    with dial(endpoint) as sock:
        sock.sendall(HELLO.pack(b"mlrunL1\n", 0, 0, 1, 0, bytes(32)))
        answer = sock.recv(64, socket.MSG_WAITALL)
        sock.sendall(answer[32:] + b"CA")
        until_closed(sock)


@pytest.mark.parametrize("stranger", [garbage, hangs_up, slow_loris, guesses_the_secret, reflects])
def test_strangers_change_nothing(ring: Callable[[int], Ring], stranger: Callable[..., None]) -> None:
    each, over = ring(2), threading.Event()
    waiting = each.join(1, endpoints=[[closed_port()], each.endpoints[1]])
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(stranger, each.endpoints[1][0], over)
        if stranger is not slow_loris:
            hostile.result()
        check_ring([each.join(0).result(), waiting.result()], 1)
        over.set()
        hostile.result()


class Tap:
    """Passes one connection on to ``target`` and keeps what the dialler said."""

    def __init__(self, target: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.said = b""
        self.target = target

    def serve(self) -> None:
        inside, _ = self.listener.accept()
        self.listener.close()
        with inside, dial(self.target) as outside:
            back = threading.Thread(target=self._copy, args=(outside, inside))
            back.start()
            while data := inside.recv(4096):
                self.said += data
                outside.sendall(data)
            outside.shutdown(socket.SHUT_WR)
            back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)


def test_a_replayed_handshake_is_refused(ring: Callable[[int], Ring]) -> None:
    first = ring(2)
    tap = Tap(first.endpoints[1][0])
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(tap.serve)
        joining = first.join(0, endpoints=[first.endpoints[0], [tap.endpoint]]), first.join(1)
        for links in [f.result() for f in joining]:
            links.close()
        served.result()
    assert len(tap.said) >= HELLO.size + 32

    second = ring(2)
    waiting = second.join(1, endpoints=[[closed_port()], second.endpoints[1]])
    with dial(second.endpoints[1][0]) as sock:
        sock.sendall(tap.said)
        assert len(sock.recv(64, socket.MSG_WAITALL)) == 64
        until_closed(sock)
    check_ring([second.join(0).result(), waiting.result()], 1)


@pytest.mark.parametrize(
    "changes", [{"secret": secrets.token_hex(32)}, {"generation": 7}], ids=["other-run", "other-generation"]
)
def test_another_run_is_kept_out(ring: Callable[[int], Ring], changes: dict[str, object]) -> None:
    each = ring(2)
    joining = each.join(0, timeout_s=1.5), each.join(1, timeout_s=1.5, **changes)
    for work in joining:
        with pytest.raises(LinkError):
            work.result()


# Errors -------------------------------------------------------------------------------------------


def test_a_missing_neighbour_is_named(ring: Callable[[int], Ring]) -> None:
    each = ring(3)
    each.endpoints[2] = [closed_port()]
    joining = each.join(0, timeout_s=2.5), each.join(1, timeout_s=2.5)
    for rank, work in enumerate(joining):
        with pytest.raises(LinkError) as caught:
            work.result()
        text = str(caught.value)
        assert f"rank {rank} (mac-{rank})" in text
        assert f"rank 2 (mac-2): {each.endpoints[2][0]}: refused" in text
        assert f"rank {1 - rank} (" not in text


def test_a_silent_neighbour_is_told_from_a_dead_one(ring: Callable[[int], Ring]) -> None:
    with pytest.raises(LinkError, match=r"rank 1 \(mac-1\): connected, but no answer"):
        ring(2).join(0, timeout_s=1.0).result()


@pytest.mark.parametrize("endpoint", ["localhost:5000", "10.0.0.1", "10.0.0.1:", "[::1]:0", "::1", ""])
def test_only_literal_addresses_with_a_port(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_endpoint(endpoint)


def test_endpoints_parse() -> None:
    assert parse_endpoint("10.0.0.1:5000") == ("10.0.0.1", 5000)
    assert parse_endpoint("[fe80::1%lo]:5000") == ("fe80::1%lo", 5000)


def test_a_listener_keeps_to_its_ports() -> None:
    with (
        Listener(["127.0.0.1"], range(47310, 47330)) as one,
        Listener(["127.0.0.1"], range(47310, 47330)) as two,
    ):
        ports = {parse_endpoint(each.endpoints[0])[1] for each in (one, two)}
        assert len(ports) == 2
        assert ports <= set(range(47310, 47330))
        (taken,) = {parse_endpoint(one.endpoints[0])[1]}
        with pytest.raises(LinkError, match="the port is taken"):
            Listener(["127.0.0.1"], range(taken, taken + 1))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "localhost"])
def test_a_listener_refuses_wildcards_and_names(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Listener([address])


def test_an_address_of_another_host_is_said_so() -> None:
    with pytest.raises(LinkError, match=r"can't listen on 192\.0\.2\.1: this host doesn't have that address"):
        Listener(["192.0.2.1"])
