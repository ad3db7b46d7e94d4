"""Every file in ``wrong/`` says in ``# expect`` lines what mlrun must find: ``line:column key | fix``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WRONG = sorted((Path(__file__).parent / "wrong").glob("*.yaml"))
LIBRARY_WORDS = re.compile(r"Traceback|pydantic|Input should|Extra inputs|literal\[|function-after|yaml\.\w+")


def expected(spec: Path) -> set[str]:
    lines = spec.read_bytes().decode(errors="replace").splitlines()
    told = set()
    for line in lines:
        if line.startswith("# expect "):
            where, fix = line.removeprefix("# expect ").split("| ", 1)
            position, _, key = where.strip().partition(" ")
            place = f"{spec}:{position}" if position else str(spec)
            told.add(f"{place}: {key}: … Fix: {fix}" if key else f"{place}: … Fix: {fix}")
    return told


def found(line: str, expectation: str) -> bool:
    before, after = expectation.split("…")
    return line.startswith(before) and line.endswith(after)


@pytest.mark.parametrize("spec", WRONG, ids=[spec.stem for spec in WRONG])
def test_every_mistake_is_told_in_its_place_with_one_fix(spec, mlrun):
    done = mlrun("launch", str(spec))

    lines = done.err.splitlines()
    assert done.code == 2
    assert expected(spec), "the file says what is expected of it"
    assert len(lines) == len(expected(spec)), done.err
    for expectation in expected(spec):
        assert any(found(line, expectation) for line in lines), f"{expectation}\nnot in\n{done.err}"
    assert all(line.count("Fix: ") == 1 for line in lines)
    assert not LIBRARY_WORDS.search(done.out + done.err)


def test_there_are_thirty():
    assert len(WRONG) >= 30


def test_validate_tells_the_mistakes_of_all_files(mlrun, good):
    done = mlrun("validate", *map(str, WRONG), str(good))

    assert done.code == 2
    assert f"{good}: OK" in done.out
    assert len(done.err.splitlines()) == sum(len(expected(spec)) for spec in WRONG)


def test_mistakes_are_in_the_order_of_the_file(mlrun):
    done = mlrun("validate", str(Path(__file__).parent / "wrong" / "many_mistakes.yaml"))

    places = [tuple(map(int, re.search(r":(\d+):(\d+):", line).groups())) for line in done.err.splitlines()]
    assert places == sorted(places)
