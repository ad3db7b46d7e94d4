"""Scalars as in YAML 1.2, overrides, the smoke block, and files that aren't specs."""

from __future__ import annotations

import math
import os
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlrun import specfile, yaml12
from mlrun.specfile import SpecError

BASE = "name: job\nmodel: {name: resnet18}\nbatch_size: 8\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("+1.5E+2", 150.0),
        (".5", 0.5),
        ("12.", 12.0),
        ("010", 10),
        ("0o14", 12),
        ("0xFF", 255),
        ("-0", 0),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("22:30", "22:30"),
        ("2024-01-31", "2024-01-31"),
        ("yes", "yes"),
        ("off", "off"),
        ("y", "y"),
        ("True", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("Null", None),
        ("-.inf", -math.inf),
        ("1e", "1e"),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(write, text, value):
    spec = specfile.load(
        write(
            f"{BASE}steps: 1\nmodel:\n  name: m\n  args: {{x: {text}}}\n".replace(
                "model: {name: resnet18}\n", ""
            )
        )
    )

    assert spec.model.args["x"] == value
    assert type(spec.model.args["x"]) is type(value)


def test_nan_in_arguments_is_a_number():
    assert math.isnan(yaml12.scalar(".nan"))


def test_environment_values_stay_text_as_written(write):
    spec = specfile.load(
        write(
            BASE + "steps: 1\nenv: {A: 010, B: on, C: 1e-3, D: 0x1F, E: true, F: 22:30, G: ~}\n"
            "hosts: [{name: mac1, env: {H: 007}}]\n"
        )
    )

    assert spec.env == {"A": "010", "B": "on", "C": "1e-3", "D": "0x1F", "E": "true", "F": "22:30", "G": None}
    assert spec.hosts[0].env == {"H": "007"}


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (BASE + "steps: 3\n").replace("\n", "\r\n").encode())

    assert specfile.load(path).steps == 3


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["optimizer.lr=1e-3"], "optimizer.lr", 1e-3),
        (["model.args.width=16", "model.args.norm=group"], "model.args", {"width": 16, "norm": "group"}),
        (["model.args={width: 16, sizes: [1, 2]}"], "model.args", {"width": 16, "sizes": [1, 2]}),
        (["env.A=007"], "env", {"A": "007"}),
        (["hosts=[mac1, mac2]", "hosts.1=mac3"], "hosts", ["mac1", "mac3"]),
        (["steps=20", "steps=30"], "steps", 30),
        (["allreduce.wire_dtype="], "allreduce.wire_dtype", None),
        (["workdir=a=b"], "workdir", "a=b"),
        (["evaluate.every_steps=5"], "evaluate.every_steps", 5),
    ],
)
def test_set_overrides_a_key(good, overrides, key, value):
    found = specfile.load(good, overrides)
    for part in key.split("."):
        found = getattr(found, part)

    assert found == value


def test_an_override_replaces_the_key_that_it_excludes(good):
    spec = specfile.load(good, ["epochs=3", "global_batch_size=64"])

    assert (spec.epochs, spec.steps, spec.global_batch_size, spec.batch_size) == (3, None, 64, None)


@pytest.mark.parametrize(
    ("override", "path", "fix"),
    [
        ("lr=0.1", "lr", "did you mean optimizer.lr?"),
        ("optimizer.lr=fast", "optimizer.lr", "write 0.1, say"),
        ("optimizer.lr.x=1", "optimizer.lr.x", None),
        ("name.x=1", "name", "set name itself"),
        ("model.args={a: [1", "model.args", "close it with ']', items separated by ','"),
        ("steps", "", "write --set key.path=value"),
        ("=3", "", "write --set key.path=value"),
        ("a..b=3", "", "write --set key.path=value"),
        ("hosts.4=mac", "hosts", None),
        ("steps=&a 3", "steps", None),
    ],
)
def test_a_wrong_override_is_told_as_it_was_given(good, override, path, fix):
    with pytest.raises(SpecError) as raised:
        specfile.load(good, [override])

    (mistake,) = raised.value.mistakes
    assert str(mistake.place) == f"--set {override}"
    assert yaml12.dotted(mistake.path) == path or fix is None
    assert fix is None or mistake.fix == fix


def test_smoke_is_laid_over_the_spec_only_where_asked_for(write):
    path = write(
        BASE + "steps: 100\ndata: {samples: 1000, classes: 10}\nsmoke:\n  epochs: 1\n  data: {samples: 8}\n"
    )
    plain, smoke = specfile.load(path), specfile.load(path, smoke=True)

    assert (plain.steps, plain.epochs, plain.data.samples) == (100, None, 1000)
    assert (smoke.steps, smoke.epochs, smoke.data.samples, smoke.data.classes) == (None, 1, 8, 10)


@pytest.mark.parametrize("block", ["", "smoke: {}\n"])
def test_smoke_is_short_and_small_without_a_block_too(write, block):
    path = write(BASE.replace("batch_size: 8", "global_batch_size: 4096") + "epochs: 90\n" + block)
    plain, smoke = specfile.load(path), specfile.load(path, smoke=True)

    assert (plain.epochs, plain.global_batch_size, plain.data.samples) == (90, 4096, None)
    assert (smoke.steps, smoke.epochs, smoke.data.samples) == (4, None, 64)
    assert (smoke.batch_size, smoke.global_batch_size) == (4, None)
    assert smoke.checkpoint.every_steps == 2


def test_set_comes_after_smoke_and_can_change_the_block_itself(write):
    path = write(BASE + "steps: 100\nsmoke: {steps: 2}\n")

    assert specfile.load(path, ["steps=7"], smoke=True).steps == 7
    assert specfile.load(path, ["smoke.steps=5"], smoke=True).steps == 5
    assert specfile.load(path, ["smoke.steps=5"]).steps == 100
    assert specfile.load(path, ["smoke={steps: 6}"], smoke=True).steps == 6


def test_a_missing_file_names_the_nearest_one(tmp_path, write):
    write(BASE + "steps: 3\n", "resnet.yaml")
    with pytest.raises(SpecError, match=r"no such file. Fix: did you mean .*resnet\.yaml\?"):
        specfile.load(tmp_path / "resnt.yaml")


def test_a_pipe_is_no_spec_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match="neither a file nor a folder"):
        specfile.load(tmp_path / "pipe.yaml")


def test_a_folder_names_a_spec_in_it(tmp_path, write):
    write(BASE + "steps: 3\n", "resnet.yaml")
    with pytest.raises(SpecError, match=r"this is a folder.*such as .*resnet\.yaml"):
        specfile.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"), [(b"", "the file is empty"), (b"a" * (1 << 21), "larger than 1 MiB")]
)
def test_what_is_no_spec_is_said_so(tmp_path, content, problem):
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=problem):
        specfile.load(path)


def mistakes_of(path, *overrides):
    try:
        specfile.load(path, overrides)
    except SpecError as error:
        return error.mistakes
    return []


_scraps = st.lists(
    st.sampled_from(
        [*"\n\n  :-[]{},&*!|>'\"#%@`?~<\t", "\n", ": ", "\n- ", "name", "smoke", "env", "data", "1", "x", "é"]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(_scraps, st.text(max_size=60)))
def test_no_text_makes_anything_but_a_spec_or_mistakes(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any", numbered=True) / "spec.yaml"
    path.write_text(BASE + text, encoding="utf-8", errors="replace", newline="")
    assert all(str(mistake).isprintable() for mistake in mistakes_of(path))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=string.printable, max_size=30), st.text(max_size=20))
def test_no_override_makes_anything_but_a_spec_or_mistakes(tmp_path_factory, key, value):
    path = tmp_path_factory.getbasetemp() / "overridden.yaml"
    path.write_text(BASE + "steps: 3\nhosts: [a]\n")
    assert all(mistake.fix for mistake in mistakes_of(path, f"{key}={value}", f"hosts.{key}={value}"))


def test_no_key_moves_the_cursor_or_breaks_the_line(write):
    with pytest.raises(SpecError) as raised:
        specfile.load(write(BASE + 'steps: 3\n"\\e[2J\\nx": 1\n'), ["a\n\x1b=1"])

    assert len(raised.value.mistakes) == 2
    assert len(str(raised.value).splitlines()) == 2
    assert all(line.isprintable() for line in str(raised.value).splitlines())
