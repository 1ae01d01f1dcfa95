"""Kilometres, fiber types and optics to delay, rate and loss."""
