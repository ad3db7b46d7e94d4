"""Communication hooks that start collectives inside callbacks."""

from __future__ import annotations

from typing import Any

import pytest
from torch_ranks import RankPool, step_with_hook


@pytest.mark.parametrize(
    ("hook", "named"),
    [
        ("powerSGD_hook.powerSGD_hook", "powerSGD_hook.py"),
        ("powerSGD_hook.batched_powerSGD_hook", "powerSGD_hook.py"),
        ("quantization_hooks.quantization_pertensor_hook", "quantization_hooks.py"),
        ("own", "a communication hook starts collectives"),
    ],
)
def test_it_is_refused_at_its_first_step_with_the_reason(ranks: RankPool, hook: str, named: str) -> None:
    for text in ranks.run(2, step_with_hook, hook):
        assert named in text
        assert "gradients would be mixed" in text


@pytest.mark.parametrize("hook", ["default_hooks.allreduce_hook", "default_hooks.fp16_compress_hook"])
def test_hooks_that_only_compute_in_callbacks_work(ranks: RankPool, hook: str) -> None:
    results: list[Any] = ranks.run(2, step_with_hook, hook)
    assert results == ["done", "done"]
