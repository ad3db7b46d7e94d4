"""mlrun's stand-in for horovod.keras.callbacks: docs/horovod.md."""

from mlrun.horovod.keras.callbacks import *
