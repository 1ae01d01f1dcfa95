"""Actual and expected state, obtained without the code under test."""
