"""Measurements: packets sent through paths, and carrier changes."""
