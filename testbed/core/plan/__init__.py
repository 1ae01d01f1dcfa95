"""Compile a Topology to a plan, a tuple of Steps."""
