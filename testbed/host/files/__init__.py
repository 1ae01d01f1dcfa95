"""Files: read topologies and experiments, read and write run directories."""
