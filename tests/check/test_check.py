"""``mlrun check`` on scripts whose comments say what must be found in their line, and on our own examples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlrun.check.rules import RULES
from mlrun.check.script import check
from mlrun.errors import RequestError

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.py"))
CHECKOUT = Path(__file__).parents[2]
EXAMPLES = sorted((CHECKOUT / "examples").rglob("*.py"))


def expected(script: Path) -> list[tuple[int, str]]:
    marked = [line.partition("# finds: ")[2] for line in script.read_text().splitlines()]
    return sorted(
        (i + 1, rule.strip()) for i, rules in enumerate(marked) if rules for rule in rules.split(",")
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_does_is_found_in_its_line_and_nothing_else(script: Path) -> None:
    assert sorted((finding.line, finding.rule) for finding in check(script)) == expected(script)


def test_every_rule_is_shown_by_a_script() -> None:
    assert {rule for script in SCRIPTS for _, rule in expected(script)} == {rule.name for rule in RULES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_our_own_examples_are_clean(example: Path) -> None:
    assert check(example) == []


def mlrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlrun.cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_findings_are_exit_code_4_with_place_and_fix() -> None:
    script = Path(__file__).with_name("scripts") / "nccl.py"
    for command in ("check", "validate"):
        done = mlrun(command, str(script))
        assert done.returncode == 4, done.stderr
        assert f"{script}:5:29: NCCL is for NVIDIA alone. Fix: leave the backend out" in done.stdout
    rows = [json.loads(line) for line in mlrun("check", "--json", str(script)).stdout.splitlines()]
    assert [(row["line"], row["rule"]) for row in rows] == expected(script)
    assert mlrun("check", str(EXAMPLES[0])).returncode == 0


def test_what_is_no_script_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = (\n")
    with pytest.raises(RequestError, match=r"broken.py:1: this isn't Python"):
        check(tmp_path / "broken.py")
    with pytest.raises(RequestError, match="No such file"):
        check(tmp_path / "nosuch.py")
