"""Measure the engines beside each other and beside what the wire allows."""
