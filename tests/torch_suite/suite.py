"""PyTorch's own tests of torch.distributed, from its wheel, against backend mlrun on the CPU.

``python suite.py SIZE [TEST...]`` runs them on SIZE ranks and prints one JSON object per test as it ends.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Any

BACKEND = "mlrun"
FEATURES = ("ddp", "subgroup", "plugin")
"""Sets of backends by which PyTorch chooses tests: with these it runs those of DDP and of groups."""

LIFTED = (
    "Only MPI supports",
    "get_future is only supported on",
    "GLOO Batch Send Recv CPU",
    "Test requires backend mlrun to be one of",
)
"""How reasons of skips begin that only ask for a name, where this backend offers what the test needs."""

NOT_OURS = ("monitored_barrier", "accumulate_gradients", "nccl", "cuda")
"""Parts of names of tests behind such reasons that stay skipped: what they call asks for a name too."""


def load(size: int) -> type[unittest.TestCase]:
    """The test case for ``size`` ranks. The module reads both variables once, when it's imported."""
    os.environ.update(BACKEND=BACKEND, WORLD_SIZE=str(size))
    import torch  # noqa: PLC0415
    from torch.testing._internal import common_distributed as common  # noqa: PLC0415

    for feature in FEATURES:
        common.DistTestCases.backend_feature[feature].add(BACKEND)
    common.DistTestCases.skip_collective["sendrecv anysource"].add(BACKEND)
    common.skip_if_small_worldsize = lambda test: test  # fewer than 8 ranks are too few for NCCL's CI only
    from torch.testing._internal.distributed import distributed_test  # noqa: PLC0415

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Ranks are forked, not spawned: each import of torch costs seconds.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for name in unittest.TestLoader().getTestCaseNames(Suite):
        test = getattr(Suite, name)
        why = getattr(test, "__unittest_skip_why__", "")
        if why.startswith(LIFTED) and not any(part in name for part in NOT_OURS):
            test.__unittest_skip__ = False
    return Suite


class _Lines(unittest.TestResult):
    """Prints what became of each test; what tests and ranks print goes elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def _tell(self, test: Any, outcome: str, reason: str = "") -> None:
        name = test.id().rpartition(".")[2]
        print(json.dumps({"test": name, "outcome": outcome, "reason": reason}), file=self._out, flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: N802 - unittest\'s name
        self._tell(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802 - unittest\'s name
        self._tell(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest\'s name
        self._tell(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest\'s name
        self._tell(test, "error", self._exc_info_to_string(err, test))


def main(size: int, names: list[str]) -> None:
    case = load(size)
    tests = [case(name) for name in names or unittest.TestLoader().getTestCaseNames(case)]
    unittest.TestSuite(tests).run(_Lines())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
