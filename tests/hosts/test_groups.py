"""Groups of hosts, and MLRUN_HOSTS."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlrun.errors import RequestError
from mlrun.hosts import Host, chosen_hosts, groups_file, hosts_of_spec, parse_hosts, save_group


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MLRUN_HOSTS", raising=False)
    return tmp_path


def test_a_saved_group_stands_for_its_hosts() -> None:
    mac2 = Host("mac2", address="fe80::1%en0", user="anna", slots=2, interfaces=("en5",))
    save_group("studios", [Host("mac1"), mac2])
    save_group("minis", [Host("mini1", user="bo")])
    assert parse_hosts("@studios,mac9:2") == [Host("mac1"), mac2, Host("mac9", slots=2)]
    assert parse_hosts("@minis") == [Host("mini1", user="bo")]


@pytest.mark.parametrize("text", ["mac0\n@studios\n", "hosts:\n- mac0\n- '@studios'\n"])
def test_a_group_may_stand_in_a_spec_and_in_a_hostfile(tmp_path: Path, text: str) -> None:
    save_group("studios", [Host("mac1"), Host("mac2", slots=2)])
    wanted = [Host("mac0"), Host("mac1"), Host("mac2", slots=2)]
    assert hosts_of_spec(["mac0", "@studios"]) == wanted
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(text)
    assert chosen_hosts(None, hostfile) == wanted
    hostfile.write_text(text.replace("studios", "minis"))
    with pytest.raises(RequestError, match=r"hostfile:[23]: there is no group @minis .*@studios"):
        chosen_hosts(None, hostfile)


def test_a_host_added_again_is_replaced() -> None:
    save_group("studios", [Host("mac1"), Host("mac2")])
    save_group("studios", [Host("mac1", user="anna")])
    assert parse_hosts("@studios") == [Host("mac1", user="anna"), Host("mac2")]


def test_an_unknown_group_names_those_there_are() -> None:
    save_group("studios", [Host("mac1")])
    with pytest.raises(RequestError, match=r"no group @studio .*@studios"):
        parse_hosts("@studio")


@pytest.mark.parametrize(
    ("text", "line"), [("studios:\n- mac1\n- a b\n", ":3: 'a b'"), ("studios: 3\n", ":1: ")]
)
def test_a_mistake_in_the_file_is_told_by_line(text: str, line: str) -> None:
    groups_file().parent.mkdir(parents=True)
    groups_file().write_text(text)
    with pytest.raises(RequestError, match=f"hosts.yaml{line}"):
        parse_hosts("@studios")


def test_the_variable_counts_where_no_hosts_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLRUN_HOSTS", "mac1,mac2:2")
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("mac7\n")
    assert chosen_hosts(None, None) == [Host("mac1"), Host("mac2", slots=2)]
    assert chosen_hosts("mac8", None) == [Host("mac8")]
    with pytest.raises(RequestError, match="The list of hosts is empty"):
        chosen_hosts("", None)
    assert chosen_hosts(None, hostfile) == [Host("mac7")]
