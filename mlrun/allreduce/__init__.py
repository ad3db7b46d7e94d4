"""Collectives over host memory: one interface, several engines. Knows no framework."""
