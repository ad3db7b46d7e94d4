"""What people read of the links: one line an edge, and a warning where one will hold them up."""

from __future__ import annotations

from mlrun.network.choice import Edge
from mlrun.network.report import edge_details, edge_line, warnings
from mlrun.protocol import LinkEnd, LinkPath


def edge(one: str, other: str, kind: str | None, *rates: float | None) -> Edge:
    paths = [
        LinkPath([LinkEnd(f"10.{i}.0.1", f"en{i}"), LinkEnd(f"10.{i}.0.2", f"en{i + 1}")], kind, rate, 8e-5)
        for i, rate in enumerate(rates)
    ]
    return Edge((one, other), paths)


def test_an_edge_in_a_line() -> None:
    assert edge_line(edge("mac1", "mac2", "thunderbolt", 2.4e9)) == (
        "mac1 → mac2 over Thunderbolt (en0 → en1), 2.4 GB/s, round trip 0.08 ms"
    )
    assert edge_line(edge("mac1", "mac2", "ethernet", 1.1e8, 1.2e8)) == (
        "mac1 → mac2 over Ethernet (en0 → en1) and Ethernet (en1 → en2), 220 MB/s together, "
        "round trip 0.08 ms"
    )
    assert "unknown speed" in edge_line(edge("mac1", "mac2", None, None))


def test_wifi_is_warned_of_with_numbers_and_an_action() -> None:
    (warning,) = warnings([edge("mac2", "mac3", "wifi", 38e6)], ranks=4, gradient_bytes=102_000_000)
    # 3/4 * 102 MB / 38 MB/s = 2.01 s
    assert warning.startswith("mac2 → mac3 over Wi-Fi at 38 MB/s: about 2.0 s per step to average 102 MB")
    assert "--interface" in warning


def test_an_edge_ten_times_slower_than_the_best_is_warned_of() -> None:
    edges = [
        edge("a", "b", "thunderbolt", 2e9),
        edge("b", "c", "ethernet", 1e8),
        edge("c", "a", "ethernet", 3e8),
    ]
    (warning,) = warnings(edges, ranks=3, gradient_bytes=120_000_000)
    assert warning.startswith("b → c over Ethernet at 100 MB/s: about 800 ms per step")
    assert "against 40 ms over the best edge" in warning


def test_what_is_unknown_is_said_to_be() -> None:
    (warning,) = warnings([edge("a", "b", "wifi", None)], ranks=2, gradient_bytes=None)
    assert "unknown" in warning
    (warning,) = warnings([edge("a", "b", "wifi", 50e6)], ranks=2, gradient_bytes=None)
    assert "every 100 MB of gradients take about 2.0 s" in warning


def test_even_cables_need_no_warning() -> None:
    assert warnings([edge("a", "b", "ethernet", 1.2e8), edge("b", "a", "ethernet", 2e8)], 2, 10**9) == []


def test_the_detail_of_events_names_interfaces_and_rates() -> None:
    (detail,) = edge_details([edge("a", "b", "ethernet", 1e8, 1e8)])
    assert detail["hosts"] == ["a", "b"]
    assert detail["interfaces"] == [["en0", "en1"], ["en1", "en2"]]
    assert detail["bytes_per_s"] == 2e8


def test_edges_of_one_port_share_it() -> None:
    def through(port: str, one: str, other: str) -> Edge:
        path = LinkPath([LinkEnd("10.0.0.1", port), LinkEnd("10.0.0.2", "en0")], "wifi", 40e6, 8e-5)
        return Edge((one, other), [path])

    switch = [through("en0", "a", "b"), through("en0", "b", "c"), through("en0", "c", "a")]
    assert [detail["bytes_per_s_together"] for detail in edge_details(switch)] == [20e6] * 3
    assert edge_details(switch[:1])[0]["bytes_per_s_together"] == 40e6
    warning = warnings(switch, ranks=3, gradient_bytes=120_000_000)[0]
    # 2/3 * 120 MB / 20 MB/s
    assert warning.startswith("a → b over Wi-Fi at 40 MB/s shared with the next edge: about 4.0 s per step")
