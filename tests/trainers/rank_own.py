"""A rank of a script that accelerate ships to try a set-up with: ``rank_own.py NAME``."""

from __future__ import annotations

import runpy
import sys

import mlrun.accelerate

mlrun.accelerate.join()
name = sys.argv.pop(1)
runpy.run_module(f"accelerate.test_utils.scripts.{name}", run_name="__main__")
