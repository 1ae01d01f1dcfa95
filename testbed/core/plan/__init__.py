"""A Topology to a plan: a tuple of Steps."""
