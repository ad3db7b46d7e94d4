"""Hosts that a long run should be warned of."""

from __future__ import annotations

from mlrun.launch.readiness import host_warnings, lid_note, room_warnings


def test_only_what_is_known_to_be_bad_is_told() -> None:
    facts = {
        "mac1": {"on_battery": True, "low_power": False, "automatic_updates": None},
        "mac2": {"on_battery": False, "low_power": True, "automatic_updates": True},
        "mac3": {"on_battery": None, "low_power": None, "automatic_updates": None},
    }
    told = host_warnings(facts)
    assert [line.split(":")[0] for line in told] == [
        "mac1 runs on its battery, which slows it and won't last",
        "mac2 is in Low Power Mode, so all wait for it",
        "mac2 installs macOS updates by itself and may restart",
    ]


def test_there_must_be_room_for_two_checkpoints() -> None:
    facts = {
        "mac1": {"disk_free_bytes": 5 * 10**8},
        "mac2": {"disk_free_bytes": 10**12},
        "mac3": {"disk_free_bytes": None},
    }
    (told,) = room_warnings(facts, 25_000_000)
    assert told.startswith("mac1 has 0.5 GB of free disk, and two checkpoints of this model may take 0.6 GB")
    assert room_warnings(facts, None) == []


def test_a_portable_launcher_is_told_of_its_lid() -> None:
    assert lid_note(None) == "closing this lid ends the run"
    assert lid_note("mac1").endswith("with --detach it would live on mac1")
