"""The shared-risk audit (SRLG) of a topology: fibers that fail together, and the connectivity left."""
