"""The training process: one worker per rank, started by the agent of its host."""
