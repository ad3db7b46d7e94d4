"""Which evaluation was the best, and when to stop waiting for a better one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlrun.errors import RequestError
from mlrun.spec.training import Evaluate


@dataclass(slots=True)
class BestSoFar:
    """Best value of the monitored metric. Metrics are the same bits on every rank, so all decide alike."""

    rules: Evaluate
    value: float | None = None
    evaluations_since: int = 0

    def judge(self, metrics: dict[str, float]) -> bool:
        """Take in one evaluation; True where it is the best so far.

        A metric that isn't there matters only to early stopping; without it nothing is ever best.

        Raises:
            RequestError: ``patience`` watches a metric that the evaluation doesn't give.
        """
        value = metrics.get(self.rules.monitor)
        if value is None and self.rules.patience is not None:
            raise RequestError(
                f"evaluate.monitor is {self.rules.monitor!r}, but the evaluation gives {', '.join(metrics)}",
                fix=f"set evaluate.monitor to one of {', '.join(metrics)}",
            )
        if value is not None and math.isfinite(value) and self._better(value):
            self.value, self.evaluations_since = value, 0
            return True
        self.evaluations_since += 1
        return False

    @property
    def out_of_patience(self) -> bool:
        return self.rules.patience is not None and self.evaluations_since >= self.rules.patience

    def _better(self, value: float) -> bool:
        if self.value is None:
            return True
        return value > self.value if self.rules.mode == "max" else value < self.value
