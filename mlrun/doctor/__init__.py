"""Looks for what would keep a run from starting, before anyone waits for one."""
