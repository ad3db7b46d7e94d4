"""Horovod's reductions and other options: what they mean here, and which of them aren't to be had."""

from __future__ import annotations

from typing import Any

from mlrun.allreduce.communicator import CommunicatorError, Op

HorovodInternalError = CommunicatorError
"""What a collective raises that can't end well."""

Average, Sum, Adasum, Min, Max, Product = "Average", "Sum", "Adasum", "Min", "Max", "Product"

_OPS = {Average: Op.AVERAGE, Sum: Op.SUM, Min: Op.MIN, Max: Op.MAX, Product: Op.PRODUCT}


class ProcessSet:
    """The set of all ranks; others aren't to be had."""

    process_set_id = 0

    def __init__(self, *ranks: Any) -> None:
        if ranks:
            refuse_process_sets()

    def included(self) -> bool:
        return True


global_process_set = ProcessSet()


def add_process_set(process_set: Any) -> None:
    refuse_process_sets()


def remove_process_set(process_set: Any) -> None:
    refuse_process_sets()


def refuse_process_sets() -> None:
    raise NotImplementedError(
        "process sets aren't part of mlrun's Horovod API: every call goes over all ranks. "
        "For groups of ranks use torch.distributed.new_group, or the real Horovod"
    )


def check_process_set(process_set: Any) -> None:
    """
    Raises:
        NotImplementedError: it isn't the set of all ranks.
    """
    if process_set is not global_process_set:
        refuse_process_sets()


def reduction(op: Any = None, average: bool | None = None) -> Op:
    """The operation meant by ``op``, or by ``average`` where that older argument is given.

    Raises:
        NotImplementedError: Adasum.
        ValueError: both are given, or no such operation.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give op or average, not both: average=False is op=hvd.Sum")
        op = Average if average else Sum
    if op == Adasum:
        raise NotImplementedError(
            "mlrun's Horovod API has no Adasum: take op=hvd.Average, with the learning rate times hvd.size()"
        )
    if op is not None and op not in _OPS:
        raise ValueError(f"no such reduction: {op!r}")
    return _OPS[op or Average]


def _not_built() -> bool:
    return False


nccl_built = mpi_built = mpi_enabled = mpi_threads_supported = gloo_built = gloo_enabled = _not_built
cuda_built = rocm_built = ddl_built = ccl_built = _not_built


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Refused: the run folder has a timeline of its own."""
    raise NotImplementedError("mlrun writes timeline.json into the run folder instead of Horovod's timeline")


def stop_timeline() -> None:
    """Nothing to stop."""
