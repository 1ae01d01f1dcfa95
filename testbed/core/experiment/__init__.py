"""Experiment files: workload, schedule, expectations."""
