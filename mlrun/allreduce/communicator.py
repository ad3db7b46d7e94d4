"""The Communicator: what every engine offers, and all that a framework ever sees of the network."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np


class DType(enum.IntEnum):
    """Element types. The values are part of the wire format."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    INT32 = 6
    INT64 = 7
    BOOL = 8

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]


NUMPY = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.BOOL: np.bool_,
}
"""How numpy stores each type; of bfloat16, which it doesn't know, the bits."""

_ITEMSIZE = {kind: np.dtype(stored).itemsize for kind, stored in NUMPY.items()}
_FROM_NUMPY = {kind.name.lower(): kind for kind in DType}


class Op(enum.IntEnum):
    """Reductions. The values are part of the wire format."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4


class CommunicatorError(RuntimeError):
    """A collective that can't end well. The message names ranks, hosts and the call."""


class MismatchError(CommunicatorError):
    """Two ranks called different collectives (kind, dtype, count, operation or order)."""


class PeerLostError(CommunicatorError):
    """A neighbour's link ended, was silent past the heartbeat, or made no progress."""


class DeadlineError(CommunicatorError):
    """A rank didn't enter a collective in time; the message names it."""


class AbortedError(CommunicatorError):
    """``abort()`` was called here, or by a peer that passed its reason on."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Flat, contiguous host memory with an explicit dtype (numpy has no bfloat16).

    ``owner`` keeps the memory alive; a Work holds its Buffer until it has ended.
    """

    address: int
    count: int
    dtype: DType
    owner: Any = field(repr=False)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], dtype: DType | None = None) -> Buffer:
        """The memory of a writable, C-contiguous array, whose dtype is ``dtype`` where numpy can't say it.

        Raises:
            ValueError: not contiguous, not writable, or a dtype no engine knows.
        """
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("a Buffer needs a writable, C-contiguous array")
        kind = dtype if dtype is not None else _FROM_NUMPY.get(array.dtype.name)
        if kind is None:
            raise ValueError(f"no engine reduces {array.dtype.name}")
        return cls(array.ctypes.data, array.nbytes // kind.itemsize, kind, array)


class Work(Protocol):
    """One operation under way."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Block (without the GIL) until the operation has ended.

        ``timeout_s`` bounds this wait, not the operation; the operation has the group's own timers.

        Raises:
            CommunicatorError: the operation failed.
            TimeoutError: still under way after ``timeout_s``.
        """
        ...

    def done(self) -> bool:
        """True once the operation has ended, well or not."""
        ...

    def times(self) -> tuple[float, float] | None:
        """(first byte, last byte) on ``time.monotonic()``'s clock; None before the end or for size 1."""
        ...


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What one link to a neighbour has carried since it was opened. None: the system doesn't tell."""

    peer: int
    bytes_sent: int
    bytes_received: int
    send_blocked_s: float
    receive_blocked_s: float
    retransmits: int | None


class Communicator(ABC):
    """A fixed group of ranks. Immutable: a changed membership is a new Communicator.

    Operations are asynchronous and in place unless said otherwise, and run in the order in which they
    were issued, which must be the same on every rank. ``name`` appears in error messages and traces.
    """

    rank: int
    size: int
    issued: ClassVar[int] = 0
    """Operations that this process has issued so far, in all groups together."""

    @abstractmethod
    def all_reduce(
        self, buffer: Buffer, op: Op = Op.SUM, wire_dtype: DType | None = None, name: str = ""
    ) -> Work:
        """Reduce ``buffer`` over all ranks, in place; every rank gets the same bits.

        ``wire_dtype`` (FLOAT16 or BFLOAT16, for FLOAT32 buffers): what travels; sums are kept in float32.
        """

    @abstractmethod
    def broadcast(self, buffer: Buffer, root: int, name: str = "") -> Work:
        """Copy ``root``'s buffer to every rank."""

    @abstractmethod
    def all_gather(self, source: Buffer, target: Buffer, name: str = "") -> Work:
        """``target`` (size x source.count) gets every rank's ``source``, in rank order."""

    @abstractmethod
    def reduce_scatter(self, source: Buffer, target: Buffer, op: Op = Op.SUM, name: str = "") -> Work:
        """``target`` gets this rank's part of the reduced ``source`` (size x target.count), which is kept."""

    @abstractmethod
    def all_to_all(
        self,
        source: Buffer,
        target: Buffer,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
        name: str = "",
    ) -> Work:
        """Part i of ``source`` goes to rank i, part j of ``target`` comes from rank j. Equal by default."""

    @abstractmethod
    def send(self, buffer: Buffer, to: int, tag: int = 0) -> Work:
        """Matched by (source, tag) with the peer's ``recv``, in order."""

    @abstractmethod
    def recv(self, buffer: Buffer, source: int, tag: int = 0) -> Work:
        """Receive what ``source`` sent under ``tag``."""

    @abstractmethod
    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A group of ``ranks`` (numbered in the order given); None on ranks outside it. All ranks call it."""

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator:
        """``split`` for those in the group alone: the others need not know. Makes no message.

        ``name`` is the same on all of ``ranks``; a second group of that name and ranks is another one.

        Raises:
            CommunicatorError: the engine can't.
        """
        raise CommunicatorError(
            "this engine makes groups with all ranks only: for torch.distributed's new_group, set "
            "allreduce.engine: ring"
        )

    @abstractmethod
    def barrier(self, name: str = "") -> Work:
        """Ends once every rank has entered."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Free every waiter here and on the peers with an AbortedError, within 100 ms."""

    @abstractmethod
    def close(self) -> None:
        """End the links in order. Idempotent. A peer that only loses the link gets a PeerLostError."""

    def counters(self) -> list[LinkCounters]:
        """Counters per neighbour link; empty where the engine keeps none."""
        return []
