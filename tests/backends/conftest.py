from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from torch_ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Up to four ranks; each ``import torch`` costs seconds, so they are shared."""
    pool = RankPool(4)
    yield pool
    pool.close()
