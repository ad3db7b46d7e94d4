"""What a training script does that breaks or slows data-parallel training on Macs, found by reading it."""
