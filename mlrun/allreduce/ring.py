"""The native ring engine behind the Communicator interface."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import socket
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import psutil

from mlrun.allreduce import _ring
from mlrun.allreduce.communicator import (
    Buffer,
    Communicator,
    DType,
    LinkCounters,
    Op,
    Work,
)
from mlrun.allreduce.lending import Lent, RingWork
from mlrun.allreduce.links import Listener, RingLinks, connect_ring
from mlrun.protocol import Plan

_ALL_REDUCE, _BROADCAST, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL, _BARRIER, _SPLIT, _SEND, _RECEIVE = range(
    9
)
_CONNECT_S = 60.0
_WIRE_DTYPES = {DType.FLOAT16, DType.BFLOAT16}
_DEFAULT_SETTINGS: dict[str, Any] = {
    "heartbeat_s": 10.0,
    "entry_timeout_s": 1800.0,
    "progress_timeout_s": 30.0,
    "checksum": False,
    "pace_mbit_s": None,
    "pace_delay_us": 0.0,
}


class Store(Protocol):
    """What ``from_store`` needs of a ``torch.distributed`` store."""

    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


class _GroupCommunicator(Communicator):
    """A group of ranks of one engine."""

    def __init__(
        self,
        engine: _ring.Engine,
        group: _ring.Group,
        rank: int,
        size: int,
        *,
        lent: Lent | None = None,
        path: str = "",
    ) -> None:
        self.rank = rank
        self.size = size
        self._engine = engine
        self._group = group
        self._lent = lent or Lent(engine)
        self._path = path
        self._named: Counter[str] = Counter()

    def _issue(self, buffers: tuple[Buffer, ...], **request: Any) -> Work:
        work = RingWork(self._group.issue(**request), buffers)
        Communicator.issued += 1
        self._lent.lend(work)
        return work

    def all_reduce(
        self, buffer: Buffer, op: Op = Op.SUM, wire_dtype: DType | None = None, name: str = ""
    ) -> Work:
        _check_reduction(buffer.dtype, op)
        if wire_dtype is not None and (wire_dtype not in _WIRE_DTYPES or buffer.dtype != DType.FLOAT32):
            raise ValueError("wire_dtype is FLOAT16 or BFLOAT16, for FLOAT32 buffers")
        return self._issue(
            (buffer,),
            kind=_ALL_REDUCE,
            dtype=buffer.dtype,
            op=op,
            wire=-1 if wire_dtype is None else wire_dtype,
            count=buffer.count,
            source=buffer.address,
            target=buffer.address,
            name=name,
        )

    def broadcast(self, buffer: Buffer, root: int, name: str = "") -> Work:
        self._check_rank(root)
        return self._issue(
            (buffer,),
            kind=_BROADCAST,
            dtype=buffer.dtype,
            root=root,
            count=buffer.count,
            source=buffer.address,
            target=buffer.address,
            name=name,
        )

    def all_gather(self, source: Buffer, target: Buffer, name: str = "") -> Work:
        if target.nbytes != self.size * source.nbytes:
            raise ValueError(f"all_gather's target holds {target.nbytes} bytes, not size x {source.nbytes}")
        return self._issue(
            (source, target),
            kind=_ALL_GATHER,
            dtype=source.dtype,
            count=source.count,
            source=source.address,
            target=target.address,
            name=name,
        )

    def reduce_scatter(self, source: Buffer, target: Buffer, op: Op = Op.SUM, name: str = "") -> Work:
        _check_reduction(source.dtype, op)
        if source.dtype != target.dtype or source.count != self.size * target.count:
            raise ValueError("reduce_scatter's source is size x target.count elements of the target's dtype")
        if _overlap(source, target):
            raise ValueError("reduce_scatter keeps its source: the target must be other memory")
        return self._issue(
            (source, target),
            kind=_REDUCE_SCATTER,
            dtype=source.dtype,
            op=op,
            count=target.count,
            source=source.address,
            target=target.address,
            name=name,
        )

    def all_to_all(
        self,
        source: Buffer,
        target: Buffer,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
        name: str = "",
    ) -> Work:
        if source.dtype != target.dtype:
            raise ValueError("all_to_all's source and target have one dtype")
        if _overlap(source, target):
            raise ValueError("all_to_all's source and target must not overlap")
        return self._issue(
            (source, target),
            kind=_ALL_TO_ALL,
            dtype=source.dtype,
            count=0,
            source=source.address,
            target=target.address,
            source_counts=self._parts(source, source_counts),
            target_counts=self._parts(target, target_counts),
            name=name,
        )

    def send(self, buffer: Buffer, to: int, tag: int = 0) -> Work:
        return self._point_to_point(_SEND, buffer, to, tag)

    def recv(self, buffer: Buffer, source: int, tag: int = 0) -> Work:
        return self._point_to_point(_RECEIVE, buffer, source, tag)

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        chosen = self._check_group(ranks)
        # All ranks must mean the same group: the agreement is a collective like any other.
        fingerprint = zlib.crc32(repr(chosen).encode()) & 0x7FFFFFFF
        identity = self._group.next_group_id()
        self._issue((), kind=_SPLIT, tag=fingerprint, name=f"ranks {chosen}").wait()
        return self._make_group(chosen, identity, f"{self._path}/{identity}")

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator:
        chosen = self._check_group(ranks)
        named = f"{self._path}/{name} {chosen}"
        self._named[named] += 1
        path = f"{named} {self._named[named]}"
        # Numbers of groups made by split are odd, and 0 is that of all ranks.
        group = self._make_group(chosen, zlib.crc32(path.encode()) & ~1 or 2, path)
        if group is None:
            raise ValueError(f"rank {self.rank} isn't in the group of ranks {chosen}")
        return group

    def barrier(self, name: str = "") -> Work:
        return self._issue((), kind=_BARRIER, name=name)

    def abort(self, reason: str) -> None:
        self._engine.abort(reason)

    def close(self) -> None:
        """Changes nothing: a group made by ``split`` ends with the communicator it came from."""

    def counters(self) -> list[LinkCounters]:
        return [
            LinkCounters(
                peer=link.peer,
                bytes_sent=link.bytes_sent,
                bytes_received=link.bytes_received,
                send_blocked_s=link.send_blocked_s,
                receive_blocked_s=link.receive_blocked_s,
                retransmits=None if link.retransmits < 0 else link.retransmits,
            )
            for link in self._engine.counters()
        ]

    def _point_to_point(self, kind: int, buffer: Buffer, peer: int, tag: int) -> Work:
        self._check_rank(peer)
        if peer == self.rank:
            raise ValueError(f"rank {peer} can't send to or receive from itself")
        return self._issue(
            (buffer,),
            kind=kind,
            dtype=buffer.dtype,
            root=peer,
            tag=tag,
            count=buffer.count,
            source=buffer.address,
            target=buffer.address,
        )

    def _make_group(self, ranks: list[int], identity: int, path: str) -> Communicator | None:
        group = self._group.make_group(ranks, identity)
        if group is None:
            return None
        rank = ranks.index(self.rank)
        return _GroupCommunicator(self._engine, group, rank, len(ranks), lent=self._lent, path=path)

    def _check_group(self, ranks: Sequence[int]) -> list[int]:
        chosen = list(ranks)
        if len(set(chosen)) != len(chosen) or not chosen:
            raise ValueError(f"a group's ranks are given once each, not {chosen}")
        for rank in chosen:
            self._check_rank(rank)
        return chosen

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in this group of {self.size}")

    def _parts(self, buffer: Buffer, counts: Sequence[int] | None) -> list[int]:
        if counts is None:
            if buffer.count % self.size:
                raise ValueError(f"{buffer.count} elements are not {self.size} equal parts")
            return [buffer.count // self.size] * self.size
        if len(counts) != self.size or sum(counts) > buffer.count or min(counts) < 0:
            raise ValueError(f"{list(counts)} are not {self.size} parts of {buffer.count} elements")
        return list(counts)


class RingCommunicator(_GroupCommunicator):
    """All ranks of a job, joined in a ring of TCP links.

    ``hosts[r]`` is the name of rank r's host, for messages. ``links`` are this rank's sockets to its two
    neighbours, open and authenticated; they are the engine's from now on. ``settings`` is the spec's
    ``allreduce`` block. Size 1 needs no links.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        hosts: Sequence[str],
        links: RingLinks | None = None,
        *,
        generation: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = {**_DEFAULT_SETTINGS, **(settings or {})}
        pace_mbit_s = chosen["pace_mbit_s"]
        engine = _ring.Engine(
            rank=rank,
            hosts=list(hosts),
            next=_descriptors(links.next if links else []),
            previous=_descriptors(links.previous if links else []),
            generation=generation,
            heartbeat_s=chosen["heartbeat_s"],
            entry_timeout_s=chosen["entry_timeout_s"],
            progress_timeout_s=chosen["progress_timeout_s"],
            checksum=chosen["checksum"],
            pace_bytes_s=0.0 if pace_mbit_s is None else pace_mbit_s * 125e3,
            pace_delay_s=chosen["pace_delay_us"] * 1e-6,
        )
        super().__init__(engine, engine.world(), rank, size)

    def close(self) -> None:
        self._engine.close()


def from_plan(plan: Plan, rank: int, listener: Listener, secret: str) -> RingCommunicator:
    """Join the ring of ``plan`` as ``rank``; every rank calls it.

    Raises:
        LinkError: a neighbour is missing; the message names it.
    """
    links = connect_ring(
        listener,
        rank,
        plan.endpoints,
        plan.hosts,
        secret,
        generation=plan.generation,
        links=plan.settings.get("links") or 1,
        paths=plan.paths,
        timeout_s=_CONNECT_S,
    )
    return RingCommunicator(
        rank, len(plan.hosts), plan.hosts, links, generation=plan.generation, settings=plan.settings
    )


def from_store(store: Store, rank: int, size: int, timeout_s: float) -> RingCommunicator:
    """Join the ring of the ranks that meet at a ``torch.distributed`` store; every rank calls it.

    Addresses, host names and a secret made by rank 0 are exchanged through the store, so whoever can read it
    can join. ``timeout_s`` bounds the meeting and, later, how long a rank may stay out of a collective.

    Raises:
        LinkError: a neighbour couldn't be reached.
    """
    with contextlib.closing(Listener(_own_addresses())) as listener:
        mine = {"host": socket.gethostname(), "endpoints": listener.endpoints}
        if rank == 0:
            mine["secret"] = secrets.token_hex(32)
        keys = [f"mlrun-ring/{each}" for each in range(size)]
        store.set(keys[rank], json.dumps(mine).encode())
        store.wait(keys, timedelta(seconds=timeout_s))
        ranks = [json.loads(store.get(key)) for key in keys]
        endpoints = [each["endpoints"] for each in ranks]
        hosts = [each["host"] for each in ranks]
        links = connect_ring(
            listener, rank, endpoints, hosts, ranks[0]["secret"], generation=0, timeout_s=timeout_s
        )
    return RingCommunicator(rank, size, hosts, links, settings={"entry_timeout_s": timeout_s})


def _own_addresses() -> list[str]:
    """Where others may reach this host: IPv4 of all interfaces that are up, loopback last."""
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        if psutil.net_if_stats()[name].isup
        for address in addresses
        if address.family == socket.AF_INET
    ]
    return sorted(found, key=lambda address: ipaddress.ip_address(address).is_loopback)


def _descriptors(sockets: Sequence[socket.socket]) -> list[int]:
    return [each.detach() for each in sockets]


def _check_reduction(dtype: DType, op: Op) -> None:
    if dtype == DType.BOOL and op == Op.AVERAGE:
        raise ValueError("booleans have no average")


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes and a.nbytes * b.nbytes > 0
