"""The command line: a thin layer over testbed.lab."""
