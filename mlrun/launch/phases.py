"""The phases of a generation: what is being waited for, and for how long."""

from __future__ import annotations

import enum

from mlrun.launch.preparation import Stage

STOP_GRACE_S = 60.0
"""How long workers may take to finish their step and save."""


class Phase(enum.Enum):
    """What is being waited for, and for how many seconds at most."""

    GREETING = 90.0
    SENDING = 3600.0
    LOOKING = 600.0
    LINKING = 20.0
    STARTING = 300.0
    TRAINING = float("inf")
    STOPPING = STOP_GRACE_S + 5
    FINISHING = 120.0
    SETTLING = 7.0
    KILLING = 10.0
    COLLECTING = float("inf")


STAGES = {
    Stage.GREETING: Phase.GREETING,
    Stage.SENDING: Phase.SENDING,
    Stage.LOOKING: Phase.LOOKING,
    Stage.LINKING: Phase.LINKING,
}
"""The phases in which no worker has been started yet."""
