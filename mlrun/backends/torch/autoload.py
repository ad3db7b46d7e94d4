"""Makes backend ``mlrun`` known to torch.distributed. Runs at the end of every ``import torch``.

PyTorch calls ``register`` through the entry-point group ``torch.backends``. It only notes a maker; all
else is imported when a group is made.
"""

from __future__ import annotations

import os
from typing import Any

DEVICES = ("cpu", "mps", "cuda")


def register() -> None:
    """Register backend ``mlrun``, as mps' default, and as every device's under our launcher. Never raises.

    torch's own default for mps is gloo, which has no collective for its tensors.
    """
    try:
        _register()
    except Exception as error:
        import warnings  # noqa: PLC0415 - this runs in every process that imports torch

        warnings.warn(f"backend mlrun isn't available in torch.distributed: {error!r}", stacklevel=2)


def _register() -> None:
    import torch.distributed as dist  # noqa: PLC0415 - torch itself is still being imported at module level

    if not dist.is_available() or "mlrun" in dist.Backend.backend_list:
        return
    defaults = dist.Backend.default_device_backend_map
    before = dict(defaults)
    dist.Backend.register_backend("mlrun", _make_group, extended_api=True, devices=list(DEVICES))
    defaults.clear()
    defaults.update(before)
    defaults.update(dict.fromkeys(DEVICES if "MLRUN_RUN" in os.environ else ("mps",), "mlrun"))


def _make_group(options: Any, backend_options: Any) -> Any:
    from mlrun.backends.torch.process_group import make_group  # noqa: PLC0415 - needs torch whole

    return make_group(options, backend_options)
