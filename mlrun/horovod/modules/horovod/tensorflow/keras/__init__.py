"""mlrun's stand-in for horovod.tensorflow.keras, which is that for horovod.keras."""

from horovod.keras import *  # type: ignore[import-not-found]
from horovod.keras import __getattr__ as __getattr__
