"""The shared-risk audit (SRLG) of a topology: which fibers fail together, and what remains when they do."""
