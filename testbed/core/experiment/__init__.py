"""Experiment files: workload, fault schedule, steady-state hypothesis, expectations."""
