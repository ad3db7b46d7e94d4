"""Real runs through the real command line."""

from __future__ import annotations

from tests.launch.conftest import mlrun, spec

__all__ = ["mlrun", "spec"]
