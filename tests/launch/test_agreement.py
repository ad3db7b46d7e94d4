"""Hosts must have what decides the result alike; the rest is worth a line."""

from __future__ import annotations

from typing import Any

import pytest

from mlrun.errors import RefusedError
from mlrun.launch.agreement import agree, differences, table


def facts(**changes: Any) -> dict[str, Any]:
    versions = {"mlrun": "0.1.0", "torch": "2.9.0", "tensorflow": None, "numpy": "2.1.0"}
    return {
        "machine": "arm64",
        "system": "Darwin",
        "release": "26.1",
        "python": "3.12.4",
        "build": "abc",
        **changes,
        "versions": {**versions, **changes.get("versions", {})},
    }


def test_equal_hosts_have_nothing_to_say() -> None:
    assert agree({"mac1": facts(), "mac2": facts()}, "torch") == []


def test_what_training_survives_is_a_warning() -> None:
    told = {"mac1": facts(), "mac2": facts(python="3.13.1"), "mac3": facts(python="3.12.9")}
    assert agree(told, "torch") == ["the hosts differ in Python: mac1 and mac3 3.12, mac2 3.13"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"build": "def"}, "mlrun"),
        ({"versions": {"torch": "2.8.0"}}, "torch"),
        ({"machine": "x86_64"}, "machine"),
    ],
)
def test_what_breaks_training_stops_the_run_with_the_whole_table(changes: dict[str, Any], what: str) -> None:
    told = {"mac1": facts(), "mac2": facts(release="15.5", **changes)}
    with pytest.raises(RefusedError, match=f"the hosts don't agree on {what} ") as refused:
        agree(told, "torch")
    rows = refused.value.message.splitlines()[1:]
    assert rows[0].split() == ["mac1", "mac2"]
    assert rows[1].startswith(f"! {what}")
    assert rows[2].split() == ["system", "Darwin", "26.1", "Darwin", "15.5"]


def test_another_framework_s_version_decides_nothing() -> None:
    told = {"mac1": facts(), "mac2": facts(versions={"tensorflow": "2.18.0"})}
    assert agree(told, "torch") == ["the hosts differ in tensorflow: mac1 none, mac2 2.18.0"]
    with pytest.raises(RefusedError, match=r"^mac1: tensorflow isn't installed"):
        agree(told, "tensorflow")


def test_a_plugin_that_doesnt_fit_its_tensorflow_stops_the_run() -> None:
    told = {"mac1": facts(versions={"tensorflow": "2.20.0", "tensorflow-metal": "1.2.0"})}
    with pytest.raises(RefusedError, match=r"^mac1: tensorflow-metal 1.2.0 works with TensorFlow "):
        agree(told, "tensorflow")
    assert agree(told, "torch") == []


def test_no_differences_no_table() -> None:
    assert table(differences({"mac1": facts()}, "sim")) == ""
