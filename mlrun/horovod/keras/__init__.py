"""``horovod.keras`` and ``horovod.tensorflow.keras``, for Keras 3 on TensorFlow."""
