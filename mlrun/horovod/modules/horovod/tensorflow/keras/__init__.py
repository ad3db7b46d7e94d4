"""mlrun's stand-in for horovod.tensorflow.keras, which is that for horovod.keras."""

from horovod.keras import *
from horovod.keras import __getattr__ as __getattr__
