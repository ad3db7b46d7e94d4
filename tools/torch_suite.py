"""Run PyTorch's own tests of torch.distributed against backend mlrun on 3 and 4 ranks, and write
docs/torch-suite.md. Ends with 1 if one fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "torch_suite" / "suite.py"
PAGE = ROOT / "docs" / "torch-suite.md"
SIZES = (3, 4)
FAILED = ("failed", "error")

HEAD = """# PyTorch's own tests against backend mlrun

Made by `make torch-suite`; don't edit. The tests are those of
`torch/testing/_internal/distributed/distributed_test.py` in the wheel of torch {torch}, on the CPU, in groups
that meet at a file store. PyTorch chooses tests by backends' names: mlrun is added to its sets {features},
and tests behind a reason that only asks for a name run where mlrun has what they need
(`LIFTED` in `tests/torch_suite/suite.py`); so do those that PyTorch keeps for 8 ranks. A test that needs a
GPU, or whose own code asks for NCCL, Gloo or MPI by name, is skipped.

| ranks | tests | passed | failed | skipped |
|---:|---:|---:|---:|---:|
"""


def main() -> int:
    results = {size: run(size) for size in SIZES}
    PAGE.write_text(page(results))
    bad = [(size, each) for size in SIZES for each in results[size] if each["outcome"] in FAILED]
    for size, each in bad:
        print(f"\n{each['test']} on {size} ranks:\n{each['reason']}")
    for size in SIZES:
        print(
            f"{size} ranks: {count(results[size], 'passed')} passed, {count(results[size], *FAILED)} failed"
        )
    return 1 if bad else 0


def run(size: int) -> list[dict[str, Any]]:
    """What became of each test on ``size`` ranks."""
    command = [sys.executable, str(SUITE), str(size)]
    ordered = {**os.environ, "PYTHONHASHSEED": "0"}  # some reasons print a set
    results = []
    with subprocess.Popen(
        command, env=ordered, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as suite:
        assert suite.stdout is not None
        for line in suite.stdout:
            results.append(json.loads(line))
            print(f"{size} ranks: {results[-1]['test']} {results[-1]['outcome']}", flush=True)
    if suite.returncode:
        raise SystemExit(f"the suite on {size} ranks ended with {suite.returncode}")
    return results


def page(results: dict[int, list[dict[str, Any]]]) -> str:
    sys.path.insert(0, str(SUITE.parent))
    from suite import FEATURES  # noqa: PLC0415 - the folder of tests isn't a package

    features = ", ".join(f"`{feature}`" for feature in FEATURES)
    text = HEAD.format(torch=version("torch").partition("+")[0], features=features)
    for size, each in results.items():
        counts = [count(each, "passed"), count(each, *FAILED), count(each, "skipped")]
        text += f"| {size} | {len(each)} | {' | '.join(map(str, counts))} |\n"
    for size, each in results.items():
        text += f"\n## On {size} ranks\n\nPassed: {names(each, 'passed')}.\n"
        if count(each, *FAILED):
            text += f"\n**Failed**: {names(each, *FAILED)}.\n"
        text += "\n| skipped because | tests |\n|---|---|\n"
        for reason, tests in by_reason(each):
            text += f"| {reason} | {', '.join(tests)} |\n"
    return text


def by_reason(results: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Skipped tests, the most frequent reason first."""
    found = defaultdict(list)
    for each in results:
        if each["outcome"] == "skipped":
            found[" ".join(each["reason"].split())].append(short(each["test"]))
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def names(results: list[dict[str, Any]], *outcomes: str) -> str:
    return ", ".join(short(each["test"]) for each in results if each["outcome"] in outcomes)


def short(test: str) -> str:
    return test.removeprefix("test_")


def count(results: list[dict[str, Any]], *outcomes: str) -> int:
    return sum(each["outcome"] in outcomes for each in results)


if __name__ == "__main__":
    sys.exit(main())
