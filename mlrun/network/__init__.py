"""Which links a run uses, and the order of its ring: decided on the launching machine."""
