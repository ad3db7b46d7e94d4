"""``horovod.tensorflow`` over mlrun's Communicator."""
