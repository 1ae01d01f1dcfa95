"""Checkers of training, in the manner of Jepsen: what they look at and what they found."""
