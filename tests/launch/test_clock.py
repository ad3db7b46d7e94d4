"""How far a host's clock is ahead."""

import pytest

from mlrun.launch.clock import HostClock
from mlrun.protocol import Pong


def test_the_shortest_round_trip_counts():
    clock = HostClock()
    assert clock.ahead_s is None
    clock.heard(Pong(sent=100.0, time=107.0), now=104.0)  # slow on the way there
    clock.heard(Pong(sent=110.0, time=115.1), now=110.2)
    clock.heard(Pong(sent=120.0, time=125.5), now=121.0)
    assert clock.ahead_s == pytest.approx(5.0)


def test_what_tells_no_time_or_goes_backwards_does_not_count():
    clock = HostClock()
    clock.heard(Pong(sent=100.0), now=100.1)
    clock.heard(Pong(sent=100.0, time=1.0), now=99.0)
    assert clock.ahead_s is None
