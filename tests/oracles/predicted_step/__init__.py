"""A predictor written from docs/prediction.md alone, to compare `testbed predict` with.

It shares no code with the product. A job is plain numbers: sites with ranks and speeds, fibers with rate and delay.
Sites are generators that compute, begin exchanges and wait for them.
"""

from oracles.predicted_step.job import Fiber, Job, Lane, Rules, Step
from oracles.predicted_step.steady import predict

__all__ = ["Fiber", "Job", "Lane", "Rules", "Step", "predict"]
