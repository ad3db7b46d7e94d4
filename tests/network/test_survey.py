"""A survey of real probes: agents' ends in this process, on loopback addresses that stand for interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlrun.agent.link_probe import LinkProbe
from mlrun.errors import RefusedError
from mlrun.network.candidates import Measured
from mlrun.network.choice import choose
from mlrun.network.memory import Memory
from mlrun.network.survey import Survey
from mlrun.probe.addresses import Address
from mlrun.protocol import (
    LinkEnd,
    LinkListen,
    LinkListening,
    LinkMeasured,
    LinkTry,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")

SECRET = secrets.token_hex(32)


def hosts(size: int, networks: int = 1) -> dict[str, list[Address]]:
    return {
        f"mac{i}": [
            Address("lo", "ethernet", f"127.1.{network}.{i}", 24, up=True) for network in range(networks)
        ]
        for i in range(1, size + 1)
    }


class Room:
    """The agents of a survey. Whoever is in ``deaf`` answers nobody; whoever is in ``mute`` may not dial."""

    def __init__(self, deaf: frozenset[str] = frozenset(), mute: frozenset[str] = frozenset()) -> None:
        self.deaf, self.mute = deaf, mute
        self.tried: list[LinkTry] = []
        self.busy: list[set[str]] = []
        """For each bandwidth measurement, the hosts of all measurements at that time."""
        self._probes: dict[str, LinkProbe] = {}
        self._now: list[str] = []

    async def conduct(self, survey: Survey) -> None:
        outbox = survey.begin()
        try:
            while outbox:
                answers = await asyncio.gather(*(self._answer(host, message) for host, message in outbox))
                outbox = [m for host, answer in answers for m in survey.heard(host, answer)]
        finally:
            for probe in self._probes.values():
                probe.close()

    async def _answer(self, host: str, message: object) -> tuple[str, LinkListening | LinkMeasured]:
        if isinstance(message, LinkListen):
            self._probes[host] = LinkProbe(message.secret if host not in self.deaf else "00" * 32)
            return host, LinkListening(self._probes[host].listen(message.ends, message.ports))
        assert isinstance(message, LinkTry)
        self.tried.append(message)
        if host in self.mute:
            return host, LinkMeasured(message.number, problem="not permitted")
        return host, await self._probes[host].measure(message)


def survey_of(room: Room, found: dict[str, list[Address]], memory: Memory | None = None) -> Survey:
    survey = Survey(found, SECRET, memory=memory)
    asyncio.run(asyncio.wait_for(room.conduct(survey), 30))
    assert survey.done
    return survey


@pytest.mark.parametrize("size", [2, 4, 5])
def test_every_two_hosts_are_measured(size: int) -> None:
    survey = survey_of(Room(), hosts(size))
    links = survey.links()
    assert len(links) == size * (size - 1) // 2
    for measured in links.values():
        (one,) = measured
        assert one.bytes_per_s is not None
        assert one.bytes_per_s > 0
        assert 0 < one.round_trip_s < 1
    edges = choose([f"mac{i}" for i in range(1, size + 1)], survey)
    assert len(edges) == (size if size > 2 else 1)


def test_bandwidth_is_measured_in_disjoint_pairs() -> None:
    survey = Survey(hosts(6), SECRET)
    outbox = survey.begin()
    ports = iter(range(1000, 2000))
    owner: dict[str, str] = {}
    rounds = []
    while outbox:
        weighing = [(h, m) for h, m in outbox if isinstance(m, LinkTry) and m.seconds > 0]
        if weighing:
            rounds.append([(host, owner[message.far]) for host, message in weighing])
        following = []
        for host, message in outbox:
            if isinstance(message, LinkListen):
                endpoints = [f"{end.address}:{next(ports)}" for end in message.ends]
                owner |= dict.fromkeys(endpoints, host)
                following += survey.heard(host, LinkListening(list(endpoints)))
            elif isinstance(message, LinkTry):
                rate = 1e8 if message.seconds else None
                following += survey.heard(host, LinkMeasured(message.number, 1e-4, rate))
        outbox = following
    assert len(rounds) == 5
    assert sum(map(len, rounds)) == 15
    for pairs in rounds:
        everyone = [host for pair in pairs for host in pair]
        assert len(everyone) == len(set(everyone))


def test_a_host_that_may_not_dial_is_dialled() -> None:
    survey = survey_of(Room(mute=frozenset({"mac1"})), hosts(2))
    (measured,) = survey.links()["mac1", "mac2"]
    assert measured.dialler == 1
    assert measured.bytes_per_s is not None


def test_hosts_that_cannot_meet_are_refused_by_name() -> None:
    survey = survey_of(Room(deaf=frozenset({"mac2"}), mute=frozenset({"mac2"})), hosts(2))
    with pytest.raises(RefusedError, match=r"mac1 and mac2: 127\.1\.0\.2: what answers there isn't an agent"):
        choose(["mac1", "mac2"], survey)
    apart = {"mac1": hosts(1)["mac1"], "mac2": []}
    survey = survey_of(Room(), apart)
    with pytest.raises(RefusedError, match="mac1 and mac2: mac2 can't listen on any address"):
        choose(["mac1", "mac2"], survey)


def test_what_was_measured_lately_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "links.json"
    survey_of(Room(), hosts(3), Memory(path))
    again = Room()
    survey = survey_of(again, hosts(3), Memory(path))
    assert again.tried
    assert not any(each.seconds for each in again.tried)
    assert all(m.bytes_per_s for (m,) in survey.links().values())


@pytest.mark.parametrize(
    "change",
    [{"time": time.time() - 7200}, {"time": time.time() + 7200}, {"round_trip_s": 1.0}, {"bytes_per_s": "x"}],
    ids=["too old", "of the future", "another round trip", "no number"],
)
def test_stale_figures_are_dropped(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "links.json"
    survey_of(Room(), hosts(2), Memory(path))
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({key: entry | change for key, entry in kept.items()}))
    again = Room()
    survey_of(again, hosts(2), Memory(path))
    assert any(each.seconds for each in again.tried)


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 1}', "\x00\xff"])
def test_a_broken_memory_is_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "links.json"
    path.write_text(content)
    survey = survey_of(Room(), hosts(2), Memory(path))
    assert all(m.bytes_per_s for (m,) in survey.links().values())


@contextlib.contextmanager
def answering(ports: list[int] | None = None) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    probe = LinkProbe(SECRET)

    async def listen() -> list[str | None]:
        return probe.listen([LinkEnd("127.0.0.1", "lo")], ports)

    (endpoint,) = loop.run_until_complete(listen())
    assert endpoint is not None
    try:
        yield endpoint, loop
    finally:
        loop.call_soon(probe.close)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_probe_keeps_to_its_ports() -> None:
    with answering([47400, 47420]) as (endpoint, _):
        assert 47400 <= int(endpoint.rpartition(":")[2]) <= 47420


def test_strangers_learn_nothing_and_disturb_nobody() -> None:
    sayings = [b"", b"GET / HTTP/1.1\r\n\r\n", b"mlrunP1\n" + bytes(32), bytes(4096)]

    async def crowd(endpoint: str) -> tuple[LinkMeasured, LinkMeasured]:
        address, _, port = endpoint.rpartition(":")
        strangers = [await asyncio.open_connection(address, int(port)) for _ in range(100)]
        for (_, writer), saying in zip(strangers, itertools.cycle(sayings), strict=False):
            writer.write(saying)
        request = LinkTry(7, LinkEnd("127.0.0.1", "lo"), endpoint, 0.05)
        measured = await LinkProbe(SECRET).measure(request), await LinkProbe("11" * 32).measure(request)
        for _, writer in strangers:
            writer.close()
        return measured

    with answering() as (endpoint, loop):
        measured, wrong = loop.run_until_complete(asyncio.wait_for(crowd(endpoint), 20))
    assert measured.number == 7
    assert measured.bytes_per_s is not None
    assert wrong.bytes_per_s is None
    assert wrong.problem == "what answers there isn't an agent of this run"


def test_a_known_figure_needs_the_same_interfaces() -> None:
    memory = Memory()
    survey = survey_of(Room(), hosts(2), memory)
    (measured,) = survey.links()["mac1", "mac2"]
    assert memory.recall(("mac1", "mac2"), measured) == pytest.approx(measured.bytes_per_s)
    near, far = measured.candidate.ends
    moved = Address("en9", near.kind, near.address, near.prefix_length, up=True)
    other = Measured(type(measured.candidate)((moved, far), None), measured.round_trip_s, 0)
    assert memory.recall(("mac1", "mac2"), other) is None
