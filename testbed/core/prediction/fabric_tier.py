"""The tier inside a site: what its fabric adds to a step. Pure.

Each node sends at ``site_rate_bps`` of payload while all nodes of its site send: the rate of its port over the
oversubscription. An all-reduce of S bits among r ranks of a site takes 2 (r - 1) / r S / B' on it (a reduce-scatter and
an all-gather in a ring; gloo's reduce-scatter takes twice its part), a gather half of that. Beside the backward pass in
K buckets, the longer of the last bucket and of what the backward pass does not hide is exposed, as in
``bucket_pipeline.py``. It counts beside what the fiber exposes, so the two together are an upper bound.
"""

from __future__ import annotations

import math

from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE
from testbed.core.prediction.inputs import Inputs

__all__ = ["inside_s", "through_fabric"]


def inside_s(inputs: Inputs, gathers_every: int) -> float:
    """Return the exposed seconds of a step inside a site, at the mean.

    Gradients are reduced and gathered beside the backward pass of each step, or with ``gathers_every`` H > 0 reduced
    there, and the model is gathered again after each exchange, H steps apart.
    """
    if math.isinf(inputs.site_rate_bps) or inputs.ranks_per_site < 2:
        return 0.0
    ranks, buckets = inputs.ranks_per_site, inputs.bucket_count
    whole_s = 2 * (ranks - 1) / ranks * inputs.payload_bits / inputs.site_rate_bps
    hidden_s = (1 - FORWARD_SHARE) * inputs.slowest_s * (1 - 1 / buckets)
    exposed_s = max(whole_s / buckets, whole_s - hidden_s) / (1 if gathers_every else inputs.accumulate)
    return exposed_s + (whole_s / 2 / gathers_every if gathers_every else 0.0)


def through_fabric(inputs: Inputs) -> Inputs:
    """Return the inputs of a ring of all ranks: its slowest hop sets the pace, in a site or between two."""
    return inputs.but(rate_bps=min(inputs.rate_bps, inputs.site_rate_bps))
