"""Words only: a thin layer over testbed.lab."""
