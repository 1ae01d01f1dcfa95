"""Faults compile to Steps; each knows its own validation."""
