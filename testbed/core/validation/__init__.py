"""Validation of a collective library: correctness, speed against the physical bound, behaviour when the fiber fails."""
