"""Data-parallel training of one's own Keras code: a wrapped optimizer and a callback.

``import mlrun.keras as mk``, then ``mk.wrap(optimizer)`` and ``callbacks=[mk.BroadcastCallback()]``. Needs
Keras 3 on TensorFlow, or on PyTorch without overlap.
"""

from __future__ import annotations

from mlrun.keras.callback import BroadcastCallback
from mlrun.keras.optimizer import wrap

__all__ = ["BroadcastCallback", "wrap"]
