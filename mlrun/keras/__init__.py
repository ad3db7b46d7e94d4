"""Data-parallel training of one's own Keras code on TensorFlow: a wrapped optimizer and a callback.

``import mlrun.keras as mk``, then ``mk.wrap(optimizer, communicator)`` and
``callbacks=[mk.BroadcastCallback(communicator)]``. Needs Keras 3 on TensorFlow.
"""

from __future__ import annotations

from mlrun.keras.callback import BroadcastCallback
from mlrun.keras.optimizer import wrap

__all__ = ["BroadcastCallback", "wrap"]
