"""Stalls of the host, and the uncertainty of figures that they cause."""
