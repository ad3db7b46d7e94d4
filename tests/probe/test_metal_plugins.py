"""Plug-ins for TensorFlow that are known not to fit are refused before anything starts."""

from __future__ import annotations

import pytest

from mlrun.probe.metal_plugins import APPLES, COMMUNITYS, KNOWN, installed, refusal


def asked(
    plugin: str,
    version: str,
    tensorflow: str,
    python: str = "3.12.4",
    macos: str = "15.2",
    **environment: str,
) -> str | None:
    refused = refusal({plugin: version, "tensorflow": tensorflow}, python, macos, environment)
    return None if refused is None else " ".join(refused)


@pytest.mark.parametrize(
    ("plugin", "version", "tensorflow"),
    [
        (APPLES, "1.2.0", "2.18.1"),
        (APPLES, "1.2.0", "2.19.1"),
        (COMMUNITYS, "0.4.1", "2.21.0"),
        (COMMUNITYS, "0.9.0", "2.23.0"),
    ],
)
def test_what_works_or_isnt_known_is_tried(plugin: str, version: str, tensorflow: str) -> None:
    assert asked(plugin, version, tensorflow) is None


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("TensorFlow", (APPLES, "1.2.0", "2.20.0")),
        ("TensorFlow", (APPLES, "1.1.0", "2.18.0")),
        ("Python", (APPLES, "1.2.0", "2.19.1", "3.13.1")),
        ("TensorFlow", (COMMUNITYS, "0.4.1", "2.20.0")),
        ("macOS", (COMMUNITYS, "0.4.1", "2.21.0", "3.12.4", "14.6")),
    ],
)
def test_what_is_known_to_fail_names_what_it_needs(said: str, arguments: tuple[str, ...]) -> None:
    refused = asked(*arguments)
    assert refused is not None
    assert f"works with {said} " in refused
    assert "https://" in refused


def test_two_plugins_are_one_too_many() -> None:
    both = {APPLES: "1.2.0", COMMUNITYS: "0.4.1", "tensorflow": "2.21.0"}
    refused = refusal(both, "3.12.4", "15.2", {})
    assert refused is not None
    assert "both" in refused[0]
    assert installed(both) == ["tensorflow-metal 1.2.0", "tensorflow-metal-plugin 0.4.1"]


def test_a_gpu_that_isnt_waited_for_needs_tensorflow_2_22() -> None:
    refused = asked(COMMUNITYS, "0.4.1", "2.21.0", TF_METAL_SYNCHRONOUS="0")
    assert refused is not None
    assert "nan" in refused
    assert asked(COMMUNITYS, "0.4.1", "2.21.0", TF_METAL_SYNCHRONOUS="1") is None
    assert asked(COMMUNITYS, "0.9.0", "2.22.0", TF_METAL_SYNCHRONOUS="0") is None


def test_without_a_plugin_nothing_is_refused() -> None:
    assert (
        refusal({"tensorflow": "2.21.0", APPLES: None}, "3.14.0", "0", {"TF_METAL_SYNCHRONOUS": "0"}) is None
    )


def test_every_row_has_a_source() -> None:
    assert all(row.source.startswith("https://") for row in KNOWN)
