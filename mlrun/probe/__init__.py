"""What a host can say of itself. Runs in agents: standard library and psutil only."""
