"""Analysis of a run from its records alone: commits, goodput, recovery, attempts, bytes on the wire, fidelity."""
