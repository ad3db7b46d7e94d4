"""Host lists and hostfiles: every shape people already have, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlrun.errors import RequestError
from mlrun.hosts import Host, hosts_of_spec, parse_hosts, read_hostfile
from mlrun.spec.cluster import HostBlock


def test_list_with_slots_users_and_ipv6() -> None:
    hosts = parse_hosts("mac1, mac2:2,anna@mac3.local,[fe80::1%en0]:2,b@[::1],büro-mac,10.0.0.7:3")
    assert hosts == [
        Host("mac1"),
        Host("mac2", slots=2),
        Host("mac3.local", user="anna"),
        Host("fe80::1%en0", slots=2),
        Host("::1", user="b"),
        Host("büro-mac"),
        Host("10.0.0.7", slots=3),
    ]
    assert [host.is_local for host in hosts] == [False] * 4 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" , ", "empty"),
        ("mac1:x", "After the colon"),
        ("mac1:0", "no slots"),
        ("fe80::1", "brackets"),
        ("[mac1]", "isn't an IPv6 address"),
        ("-oProxyCommand=evil", "option"),
        ("-l@mac1", "option"),
        ("mac 1", "isn't a host"),
        ("mac1,mac2,mac1", "named twice"),
    ],
)
def test_wrong_lists_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse_hosts(text)


def test_lines_of_horovod_open_mpi_and_deepspeed(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the room\nmac1 slots=2\nanna@mac2  slots=1 max_slots=4 # desk\n\n[fe80::2]:3\nmac4\n")
    assert read_hostfile(file) == [
        Host("mac1", slots=2),
        Host("mac2", user="anna"),
        Host("fe80::2", slots=3),
        Host("mac4"),
    ]


def test_yaml_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "room.yaml"
    file.write_text(
        "hosts:\n"
        "  - mac1:2\n"
        "  - name: Anna's Mac\n"
        "    address: '[fe80::3%en5]'\n"
        "    user: anna\n"
        "    python: /Users/anna/my env/bin/python\n"
        "    workdir: ~/My Projects/digits\n"
        "    env: {TOKEN: null, OMP_NUM_THREADS: '4'}\n"
        "    slots: 2\n"
        "    interfaces: [en5, en6]\n"
    )
    assert read_hostfile(file) == [
        Host("mac1", slots=2),
        Host(
            "Anna's Mac",
            address="fe80::3%en5",
            user="anna",
            python="/Users/anna/my env/bin/python",
            workdir="~/My Projects/digits",
            env={"TOKEN": None, "OMP_NUM_THREADS": "4"},
            slots=2,
            interfaces=("en5", "en6"),
        ),
    ]


def test_yaml_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# room\n- mac1\n- mac2\n")
    assert [host.name for host in read_hostfile(file)] == ["mac1", "mac2"]


@pytest.mark.parametrize(
    "text",
    [
        '[{"ssh": "anna@mac1", "ips": ["192.168.0.1", "192.168.1.1"]},'
        ' {"ssh": "mac2", "ips": ["192.168.0.2"]}]',
        '{"backend": "ring", "hosts": [{"ssh": "anna@mac1", "ips": ["192.168.0.1", "192.168.1.1"]},'
        ' {"ssh": "mac2", "ips": ["192.168.0.2"]}]}',
    ],
)
def test_mlx_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(text)
    assert read_hostfile(file) == [
        Host("mac1", user="anna", interfaces=("192.168.0.1", "192.168.1.1")),
        Host("mac2", interfaces=("192.168.0.2",)),
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hosts", "mac1\nmac2 slots=two\n", r"hosts:2: 'slots=two'"),
        ("hosts", "mac1\nmac1 slots=2\n", r"hosts:2: mac1 is named twice \(first: .*hosts:1\)"),
        ("hosts", "\n# nobody\n", "names no host"),
        ("h.yaml", "hosts:\n  - mac1\n  - name: mac2\n    slots: none\n", r"h.yaml:3: slots"),
        ("h.yaml", "hosts:\n  - mac1\n  - name: mac2\n    pyton: x\n", r"h.yaml:3: pyton"),
        ("h.yaml", "hosts:\n  - {name: mac2\n", r"h.yaml:3: not YAML"),
        ("h.yaml", "hosts:\n  - name: x\n    address: -oEvil\n", r"h.yaml:2: '-oEvil'"),
        ("h.yaml", 'hosts:\n  - {name: x, python: "a\\nb"}\n', r"h.yaml:2: 'a\\nb' isn't a name or a path"),
        ("h.yaml", "machines: [a]\n", "expected the one key"),
        ("h.yaml", "hosts: mac1\n", "expected a list"),
        ("h.json", '[{"host": "mac1"}]', "entry 1"),
        ("h.json", '[{"ssh": "mac1", "ips": ["en0"]}]', "entry 1: ips"),
    ],
)
def test_wrong_hostfiles_name_file_and_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(RequestError, match=words):
        read_hostfile(file)


def test_missing_hostfile_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Cannot read the hostfile"):
        read_hostfile(tmp_path / "absent")


def test_hosts_of_a_spec() -> None:
    blocks: list[str | HostBlock] = ["mac1:2", HostBlock(name="mac2:3"), HostBlock(name="anna@mac3", slots=4)]
    assert hosts_of_spec(blocks) == [
        Host("mac1", slots=2),
        Host("mac2", slots=3),
        Host("mac3", user="anna", slots=4),
    ]
