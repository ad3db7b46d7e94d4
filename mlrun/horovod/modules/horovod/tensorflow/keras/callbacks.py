"""mlrun's stand-in for horovod.tensorflow.keras.callbacks: docs/horovod.md."""

from mlrun.horovod.keras.callbacks import *
