"""A user's topology file to a frozen, resolved Topology."""
