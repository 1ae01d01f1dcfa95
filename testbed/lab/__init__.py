"""Procedures of the command: bring up, certify, run, heal, take down."""
