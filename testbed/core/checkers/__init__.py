"""Checkers of training, in the manner of Jepsen: their procedures and findings."""
