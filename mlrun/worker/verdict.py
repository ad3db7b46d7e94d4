"""Judgements all ranks make together: same data, same replicas, who broke the step."""

from __future__ import annotations

from collections import Counter

from mlrun.errors import RunFailedError
from mlrun.worker.context import Context


class VerdictError(RunFailedError):
    """All ranks agreed that the run can't go on.

    Every rank raises it with the same content; ``culprits`` are the ranks it comes from.
    """

    def __init__(self, kind: str, message: str, culprits: list[int], step: int | None, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.kind = kind
        self.culprits = culprits
        self.step = step


def same_data(context: Context, fingerprint: str) -> None:
    """Compare the fingerprint of the dataset over all ranks. Collective.

    Raises:
        VerdictError: some rank sees other data.
    """
    answers = context.gather([fingerprint, context.host], "fingerprint of the dataset")
    odd = _odd_ones([a[0] for a in answers])
    if odd:
        raise VerdictError(
            "refused",
            f"the ranks don't see the same data: {_ranks(odd, [a[1] for a in answers])} "
            f"{'differs' if len(odd) == 1 else 'differ'} from the others (size, classes or content)",
            odd,
            None,
            "copy the same dataset to every host",
        )


def same_replicas(context: Context, state_hash: str, step: int) -> None:
    """Compare the hash of parameters and buffers over all ranks. Collective.

    Raises:
        VerdictError: some rank's replica has other bits.
    """
    answers = context.gather([state_hash, context.host], f"state hash after step {step}")
    hashes = [a[0] for a in answers]
    odd = _odd_ones(hashes)
    if odd:
        raise VerdictError(
            "diverged",
            f"the replicas differ after step {step}: {_ranks(odd, [a[1] for a in answers])} "
            f"{'has' if len(odd) == 1 else 'have'} other parameters than the rest "
            f"({', '.join(f'rank {r}: {h[:12]}' for r, h in enumerate(hashes))})",
            odd,
            step,
            "resume from the last checkpoint; if it comes back, some code changes one rank's parameters",
        )


def nonfinite_step(context: Context, own: str | None, step: int) -> VerdictError:
    """Who made the reduced gradient of ``step`` non-finite; ``own`` is this rank's answer. Collective."""
    answers = context.gather([own, context.host], f"non-finite values of step {step}")
    culprits = [r for r, (what, _) in enumerate(answers) if what is not None]
    if culprits:
        where = "; ".join(f"{answers[r][0]} on rank {r} ({answers[r][1]})" for r in culprits)
    else:
        where = "each rank's own values are finite, so their sum overflowed or the cause doesn't repeat"
    return VerdictError(
        "nonfinite",
        f"step {step} gave a value that isn't finite: {where}. No update was made",
        culprits or [0],
        step,
        "look at that rank's data around this step, or lower the learning rate; on_nonfinite: skip goes on",
    )


def _odd_ones(values: list[str]) -> list[int]:
    """Ranks whose value isn't the most common one (rank 0's, where several are)."""
    counts = Counter(values)
    usual = max(counts, key=lambda v: (counts[v], v == values[0]))
    return [r for r, v in enumerate(values) if v != usual]


def _ranks(ranks: list[int], hosts: list[str]) -> str:
    return ", ".join(f"rank {r} ({hosts[r]})" for r in ranks)
