"""Where device tensors meet the ring, in host memory: one ``Staging`` per device, chosen by ``choice``."""
