"""Objects of Python between ranks, as bytes that a framework moves.

They are pickled, as Horovod does it: only ranks of the run, which have proved who they are, can send any.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from mlrun.horovod.world import rank

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def broadcast_object(obj: Any, root_rank: int, broadcast: Callable[[Any], Any]) -> Any:
    """``root_rank``'s ``obj``; ``broadcast`` copies that rank's array to all, in place."""
    data = pickled(obj) if rank() == root_rank else np.empty(0, dtype=np.uint8)
    length = np.array([data.size], dtype=np.int64)
    broadcast(length)
    if rank() != root_rank:
        data = np.empty(int(length[0]), dtype=np.uint8)
    broadcast(data)
    return obj if rank() == root_rank else pickle.loads(data.tobytes())


def pickled(obj: Any) -> Bytes:
    return np.frombuffer(bytearray(pickle.dumps(obj)), dtype=np.uint8)


def unpickled(gathered: Bytes, lengths: Any) -> list[Any]:
    """The objects in what was gathered of all ranks' bytes."""
    ends = np.cumsum(lengths)
    return [pickle.loads(gathered[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]
