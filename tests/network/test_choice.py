"""The order of the ring and the interfaces of its edges, from what was measured."""

from __future__ import annotations

import itertools
import random

import pytest

from mlrun.network.candidates import Candidate, Measured, on_one_subnet, routed, usable
from mlrun.network.choice import Edge, fastest, ring_order
from mlrun.network.layout import ends_of_host, host_order, paths_of_ranks
from mlrun.probe.addresses import Address
from mlrun.protocol import LinkEnd, LinkPath

FAST, SLOW = 1e9, 1e8


def address(interface: str, literal: str, kind: str | None = "ethernet", length: int | None = 24) -> Address:
    return Address(interface, kind, literal, length, up=True)


def measured(near: Address, far: Address, rate: float | None) -> Measured:
    (candidate,) = on_one_subnet([near], [far]) or routed([near], [far])
    return Measured(candidate, 1e-4, 0, rate)


def interfaces(paths: list[LinkPath]) -> list[tuple[str | None, ...]]:
    return [tuple(end.interface for end in path.ends) for path in paths]


def both_ways(rates: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return rates | {(b, a): rate for (a, b), rate in rates.items()}


def test_only_interfaces_that_carry_people_s_runs_are_used() -> None:
    facts = {
        "addresses": [
            {"interface": name, "kind": kind, "address": literal, "prefix_length": 24, "up": up}
            for name, kind, literal, up in [
                ("en0", "wifi", "10.0.0.1", True),
                ("en5", "thunderbolt", "10.1.0.1", True),
                ("en6", "ethernet", "10.2.0.1", False),
                ("utun4", "vpn", "100.64.0.1", True),
                ("lo0", "loopback", "127.0.0.1", True),
                ("odd0", None, "10.3.0.1", True),
            ]
        ]
    }
    assert [a.interface for a in usable(facts, ())] == ["en0", "en5", "odd0"]
    assert [a.interface for a in usable(facts, ["en0", "100.64.0.1"])] == ["en0", "utun4"]
    assert usable({}, ()) == []


def test_pairs_of_one_subnet_come_first_and_ipv4_before_ipv6() -> None:
    mine = [
        address("en5", "fe80::1%en5", "thunderbolt", 64),
        address("en5", "fd00::1", "thunderbolt", 64),
        address("en5", "10.1.0.1", "thunderbolt"),
        address("en0", "10.0.0.1", "wifi"),
    ]
    theirs = [
        address("en7", "fe80::2%en7", "thunderbolt", 64),
        address("en7", "10.1.0.2", "thunderbolt"),
        address("en1", "10.0.0.2", "wifi"),
        address("en2", "192.168.5.9", "ethernet"),
    ]
    near = on_one_subnet(mine, theirs)
    assert [(c.interfaces, c.ends[0].address) for c in near] == [
        (("en5", "en7"), "10.1.0.1"),
        (("en0", "en1"), "10.0.0.1"),
    ]
    assert ("en0", "en2") in [c.interfaces for c in routed(mine, theirs)]
    bare = address("en9", "fe80::3%en9", None, 64), address("en9", "fe80::4%en9", None, 64)
    assert [c.interfaces for c in on_one_subnet([*mine, bare[0]], [*theirs, bare[1]])][2:] == [("en9", "en9")]
    only_scoped = on_one_subnet(mine[:1], theirs[:1])
    assert [c.ends[0].address for c in only_scoped] == ["fe80::1%en5"]


def test_the_same_address_on_both_hosts_is_no_way() -> None:
    bridge = address("docker0", "172.17.0.1")
    assert on_one_subnet([bridge], [bridge]) == routed([bridge], [bridge]) == []


def test_the_faster_interface_carries_alone_and_two_fast_ones_share() -> None:
    slow = measured(address("en0", "10.0.0.1"), address("en0", "10.0.0.2"), SLOW)
    fast = measured(address("en5", "10.1.0.1"), address("en5", "10.1.0.2"), FAST)
    other = measured(address("en6", "10.2.0.1"), address("en7", "10.2.0.2"), 0.9 * FAST)
    assert interfaces(fastest([slow, fast])) == [("en5", "en5")]
    assert interfaces(fastest([slow, other, fast])) == [("en5", "en5"), ("en6", "en7")]


def test_one_subnet_or_one_interface_is_one_cable() -> None:
    one = measured(address("en0", "10.0.0.1"), address("en0", "10.0.0.2"), FAST)
    same_subnet = measured(address("en1", "10.0.0.3"), address("en1", "10.0.0.4"), 0.99 * FAST)
    same_interface = measured(address("en0", "10.9.0.1"), address("en1", "10.9.0.4"), 0.99 * FAST)
    assert interfaces(fastest([same_subnet, one, same_interface])) == [("en0", "en0")]


def test_cables_with_self_assigned_addresses_are_cables_of_their_own() -> None:
    one = measured(address("en1", "169.254.1.1", length=16), address("en1", "169.254.1.2", length=16), FAST)
    two = measured(address("en2", "169.254.2.1", length=16), address("en2", "169.254.2.2", length=16), FAST)
    assert len(fastest([one, two])) == 2


def test_without_any_figure_the_most_promising_kind_carries() -> None:
    wifi = measured(address("en0", "10.0.0.1", "wifi"), address("en0", "10.0.0.2", "wifi"), None)
    cable = measured(
        address("en5", "10.1.0.1", "thunderbolt"), address("en5", "10.1.0.2", "thunderbolt"), None
    )
    (path,) = fastest([wifi, cable])
    assert (path.kind, path.bytes_per_s) == ("thunderbolt", None)


def test_the_ring_follows_the_fast_cables() -> None:
    hosts = ["a", "b", "c", "d"]
    rates = dict.fromkeys(itertools.combinations(hosts, 2), SLOW)
    rates |= dict.fromkeys([("a", "c"), ("b", "c"), ("b", "d"), ("a", "d")], FAST)
    assert ring_order(hosts, both_ways(rates)) in (["a", "c", "b", "d"], ["a", "d", "b", "c"])


def test_the_given_order_stays_where_the_gain_is_noise() -> None:
    random.seed(1)
    hosts = [f"mac{i}" for i in range(8)]
    rates = {pair: FAST * random.uniform(0.9, 1.1) for pair in itertools.combinations(hosts, 2)}
    assert ring_order(hosts, both_ways(rates)) == hosts


@pytest.mark.parametrize("size", [5, 8, 12])
def test_a_ring_of_cables_is_found_whatever_the_order_of_the_hosts(size: int) -> None:
    ring = [f"mac{i}" for i in range(size)]
    cables = both_ways({(ring[i], ring[(i + 1) % size]): FAST for i in range(size)})
    shuffled = random.Random(size).sample(ring, size)
    order = ring_order(shuffled, cables)
    assert order[0] == shuffled[0]
    assert all((order[i], order[(i + 1) % size]) in cables for i in range(size))


def edge(one: str, other: str, number: int) -> Edge:
    ends = [LinkEnd(f"10.0.{number}.1", "en1"), LinkEnd(f"10.0.{number}.2", "en2")]
    return Edge((one, other), [LinkPath(ends, "ethernet", FAST, 1e-4)])


def test_ranks_of_one_host_meet_on_loopback_and_listen_on_both_edges() -> None:
    edges = [edge("a", "b", 1), edge("b", "c", 2), edge("c", "a", 3)]
    assert host_order(edges) == ["a", "b", "c"]
    paths = paths_of_ranks(["a", "b", "b", "c"], edges)
    addresses = [[end.address for end in path.ends] for (path,) in paths]
    assert addresses == [
        ["10.0.1.1", "10.0.1.2"],
        ["127.0.0.1", "127.0.0.1"],
        ["10.0.2.1", "10.0.2.2"],
        ["10.0.3.1", "10.0.3.2"],
    ]
    assert [e.address for e in ends_of_host("b", 2, edges)] == ["10.0.1.2", "10.0.2.1", "127.0.0.1"]
    assert [e.address for e in ends_of_host("c", 1, edges)] == ["10.0.2.2", "10.0.3.1"]


def test_the_edge_of_two_hosts_is_read_from_both_sides() -> None:
    paths = paths_of_ranks(["a", "b"], [edge("a", "b", 1)])
    assert [[end.address for end in path.ends] for (path,) in paths] == [
        ["10.0.1.1", "10.0.1.2"],
        ["10.0.1.2", "10.0.1.1"],
    ]


def test_one_host_needs_no_paths() -> None:
    assert paths_of_ranks(["a", "a"], []) == []
    assert ends_of_host("a", 2, []) == [LinkEnd("127.0.0.1")]


def test_the_kind_of_a_way_is_that_of_its_worse_end() -> None:
    candidate = Candidate((address("en0", "10.0.0.1", "wifi"), address("en5", "10.0.0.2")), "10.0.0.0/24")
    assert candidate.kind == "wifi"
