"""Procedures: apply, certify, run, observe, undo."""
