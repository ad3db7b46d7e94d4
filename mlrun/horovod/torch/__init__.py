"""``horovod.torch`` over a process group on mlrun's Communicator."""
