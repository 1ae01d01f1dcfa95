"""The model, its data and compute, checkpoints, evaluation, and what is timed before the first step."""
