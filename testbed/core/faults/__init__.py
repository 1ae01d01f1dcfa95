"""Kinds of fault: each validates its own parameters and compiles to Steps."""
