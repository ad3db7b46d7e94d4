"""The agent: starts, watches and ends the workers of one host. Standard library and psutil only."""
