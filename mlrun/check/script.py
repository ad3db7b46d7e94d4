"""Read a script and list what it does wrong, line by line. Nothing of it is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from mlrun.check.rules import RULES, Script
from mlrun.errors import RequestError


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One line of a script that breaks or slows training. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    rule: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.problem}. Fix: {self.fix}"


def check(path: Path) -> list[Finding]:
    """All findings in the order of their lines.

    Raises:
        RequestError: no such file, or it isn't Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}", fix="name a Python script") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise RequestError(f"{path}{line}: this isn't Python: {error}", fix="name a Python script") from None
    script = Script(tree)
    return sorted(
        Finding(str(path), node.lineno, node.col_offset + 1, rule.name, rule.problem, rule.fix)
        for rule in RULES
        for node in rule.find(script)
    )
