"""NVIDIA GPUs, through NVIDIA's own bindings where they are installed (``nvidia-ml-py``)."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from mlrun.agent.telemetry.source import Source, count, percent, watts
from mlrun.protocol import TelemetryEvent

_SLOWED_BY_HEAT = 0x20 | 0x40
"""Clock event reasons: thermal slowdown by software, and by hardware."""


def _readings() -> Iterator[TelemetryEvent]:
    """All GPUs of the host as one: use is their mean; memory and power are sums."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # No bindings, no driver, or none that fits: then there is nothing to tell.
        return
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    while gpus:
        yield _reading(nvml, gpus)


def _reading(nvml: Any, gpus: list[Any]) -> TelemetryEvent:
    def of_all(ask: Callable[[Any], float]) -> list[float] | None:
        try:
            return [ask(gpu) for gpu in gpus]
        except nvml.NVMLError:
            return None

    use = of_all(lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    memory = of_all(lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    power = of_all(lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)
    reasons = of_all(lambda gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & _SLOWED_BY_HEAT)
    return TelemetryEvent(
        gpu_percent=percent(statistics.fmean(use)) if use else None,
        gpu_memory_bytes=count(sum(memory)) if memory else None,
        gpu_watts=watts(sum(power)) if power else None,
        thermal=None if reasons is None else "throttled" if any(reasons) else "nominal",
        chip=_name(nvml, gpus),
    )


def _name(nvml: Any, gpus: list[Any]) -> str | None:
    try:
        name = nvml.nvmlDeviceGetName(gpus[0])
    except nvml.NVMLError:
        return None
    name = name.decode() if isinstance(name, bytes) else name
    return name if len(gpus) == 1 else f"{len(gpus)} × {name}"


SOURCES = (Source(_readings),)
