"""Topologies: parse and validate a user's file, resolve it to a frozen Topology, derive facts."""
