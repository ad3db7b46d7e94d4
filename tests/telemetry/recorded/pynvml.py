"""NVIDIA's bindings as they would answer on a machine with two GPUs, one of them too hot."""

from types import SimpleNamespace

_GPUS = [
    SimpleNamespace(gpu=80, used=3_000_000_000, milliwatts=250_000, reasons=0x4),
    SimpleNamespace(gpu=40, used=1_000_000_000, milliwatts=150_000, reasons=0x40),
]


class NVMLError(Exception):
    pass


def nvmlInit():  # noqa: N802 - NVIDIA's name, like those that follow
    pass


def nvmlDeviceGetCount():  # noqa: N802
    return len(_GPUS)


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return _GPUS[index]


def nvmlDeviceGetUtilizationRates(gpu):  # noqa: N802
    return gpu


def nvmlDeviceGetMemoryInfo(gpu):  # noqa: N802
    return gpu


def nvmlDeviceGetPowerUsage(gpu):  # noqa: N802
    return gpu.milliwatts


def nvmlDeviceGetCurrentClocksEventReasons(gpu):  # noqa: N802
    return gpu.reasons


def nvmlDeviceGetName(gpu):  # noqa: N802
    raise NVMLError("Not Supported")
