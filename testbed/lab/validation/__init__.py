"""Validation of a collective library in a certified lab; ``validation.py`` describes the whole procedure."""
