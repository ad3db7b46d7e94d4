"""Which operators ran on the CPU because MPS lacks them, where PYTORCH_ENABLE_MPS_FALLBACK=1 allows that."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import torch

_FALLBACK = re.compile(
    r"The operator '(?P<name>[^']+)' is not currently (?:supported|implemented) on the MPS"
)


class Fallbacks:
    """Collects torch's warnings of them, from ``watch`` until the process ends."""

    def __init__(self) -> None:
        self.operators: set[str] = set()
        self._show_other = warnings.showwarning

    def watch(self) -> None:
        """Torch gives such a warning once per process, whatever the operator, unless asked for all."""
        if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") != "1":
            return
        torch.set_warn_always(True)
        warnings.filterwarnings("always", message="The operator '")
        self._show_other = warnings.showwarning
        warnings.showwarning = self._show

    def report(self) -> str | None:
        """None where there was none."""
        if not self.operators:
            return None
        return f"ran on the CPU, since MPS lacks them: {', '.join(sorted(self.operators))}"

    def _show(self, message: Warning | str, *where: Any, **more: Any) -> None:
        found = _FALLBACK.search(str(message))
        if found is None:
            self._show_other(message, *where, **more)
        else:
            self.operators.add(found["name"])
