"""``mlrun doctor``: the ladder on the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mlrun.doctor.ladder import Ladder, Rung
from mlrun.errors import ExitCode, RequestError
from mlrun.hosts import Host
from mlrun.spec import JobSpec
from mlrun.spec.training import Model

FRAMEWORKS = ("torch", "tensorflow", "sim")


def examine(hosts: Sequence[Host], framework: str, say: Callable[[str], None]) -> ExitCode:
    """Climb the ladder and ``say`` each rung; THRESHOLD_MISSED where one didn't hold."""
    spec = any_spec(framework)

    async def climb() -> ExitCode:
        held = True
        async for rung in Ladder(hosts or [Host("localhost")], spec).climb():
            held = rung.held
            for line in _lines(rung):
                say(line)
        return ExitCode.DONE if held else ExitCode.THRESHOLD_MISSED

    return asyncio.run(climb())


def any_spec(framework: str) -> JobSpec:
    """A job of ``framework`` like any other.

    Raises:
        RequestError: there is no such framework.
    """
    if framework not in FRAMEWORKS:
        raise RequestError(f"no framework {framework!r}", fix=f"choose one of {', '.join(FRAMEWORKS)}")
    fields = {
        "name": "doctor",
        "framework": framework,
        "model": Model(name="mlp"),
        "batch_size": 1,
        "steps": 1,
    }
    return JobSpec.model_validate(fields)


def _lines(rung: Rung) -> list[str]:
    first, *rest = rung.evidence or [""]
    mark = "ok " if rung.held else "NO "
    lines = [f"{mark} {rung.name}: {first}" if first else f"{mark} {rung.name}"]
    lines += [f"      {line}" for line in rest]
    lines += [f"      warning: {line}" for line in rung.warnings]
    if rung.fix is not None:
        lines.append(f"      Fix: {rung.fix}")
    return lines
