"""``mlrun doctor --device-check``: whether this machine's GPU can be trusted with a training."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlrun.errors import ExitCode, RefusedError, RequestError
from mlrun.probe.system import facts

if TYPE_CHECKING:
    import torch


def examine_device(framework: str, say: Callable[[str], None]) -> ExitCode:
    """``say`` what was found with ``framework``; THRESHOLD_MISSED where something was wrong.

    Raises:
        RequestError: it isn't torch or tensorflow, or isn't installed.
    """
    examine = {"torch": _examine_torch, "tensorflow": _examine_tensorflow}.get(framework)
    if examine is None:
        raise RequestError(f"framework {framework} has no device to check", fix="take torch or tensorflow")
    if importlib.util.find_spec(framework) is None:
        raise RequestError(f"{framework} isn't installed here", fix=f"pip install 'mlrun-ring[{framework}]'")
    return examine(say)


def _examine_torch(say: Callable[[str], None]) -> ExitCode:
    import torch  # noqa: PLC0415 - takes seconds

    from mlrun.backends.torch.device import choose_device, device_name  # noqa: PLC0415

    device = choose_device("auto", 0)
    if device.type == "cpu":
        say("NO  device: no GPU works here (mps, cuda): training would run on the CPU")
        return ExitCode.THRESHOLD_MISSED
    say(f"ok  device: {device_name(device)} ({device}), torch {torch.__version__}")
    if device.type == "mps":
        _say_known_bad(torch.__version__, say)
    results = [_overlap(device, say), _layers(device, say)]
    return ExitCode.DONE if all(results) else ExitCode.THRESHOLD_MISSED


def _examine_tensorflow(say: Callable[[str], None]) -> ExitCode:
    from mlrun.backends.tensorflow.plugin import require_sound_plugin  # noqa: PLC0415
    from mlrun.probe.metal_plugins import installed  # noqa: PLC0415
    from mlrun.probe.versions import versions  # noqa: PLC0415

    plugins = ", ".join(installed(versions())) or "no plug-in for Metal"
    try:
        require_sound_plugin()
    except RefusedError as error:
        say(f"NO  plug-in: {error}")
        return ExitCode.THRESHOLD_MISSED
    say(f"ok  plug-in: {plugins}")
    import tensorflow as tf  # noqa: PLC0415 - takes seconds, and a plug-in may break it

    from mlrun.backends.tensorflow.device_check import device_check  # noqa: PLC0415

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        say("NO  device: TensorFlow sees no GPU here: training would run on the CPU")
        return ExitCode.THRESHOLD_MISSED
    say(f"ok  device: {len(gpus)} GPU, TensorFlow {tf.__version__}")
    findings = device_check("/GPU:0")
    for finding in findings:
        say(f"{'ok ' if finding.agrees else 'NO '} {finding}")
    return ExitCode.DONE if all(finding.agrees for finding in findings) else ExitCode.THRESHOLD_MISSED


def _say_known_bad(version: str, say: Callable[[str], None]) -> None:
    from mlrun.backends.torch.known_bad import known_bad  # noqa: PLC0415

    here = facts()
    for each in known_bad(version, here["release"], here["chip"]):
        say(f"      known of this torch, macOS and chip: {each}")


def _overlap(device: torch.device, say: Callable[[str], None]) -> bool:
    from mlrun.backends.torch.staging.choice import overlapping  # noqa: PLC0415

    staging, problem = overlapping(device)
    if staging is None:
        say(f"NO  overlap: {problem}; gradients are copied to the ring, without overlap")
    else:
        say("ok  overlap: overlapped sync equals plain sync, bit for bit")
    return staging is not None


def _layers(device: torch.device, say: Callable[[str], None]) -> bool:
    from mlrun.backends.torch.device_check import device_check  # noqa: PLC0415

    findings = device_check(device)
    for finding in findings:
        say(f"{'ok ' if finding.agrees else 'NO '} {finding}")
    return all(finding.agrees for finding in findings)
