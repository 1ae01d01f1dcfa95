"""Certification of fibers: the certificate as a value, and the judge that decides on each measured quantity."""
