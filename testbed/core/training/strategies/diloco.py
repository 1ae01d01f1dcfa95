"""Twin of ``diloco``: replicas train alone, and every H steps apply the mean pseudo-gradient by Nesterov momentum."""

from __future__ import annotations

from testbed.core.training.periodic_exchange import PeriodicExchange
from testbed.core.training.published_quality import DILOCO
from testbed.core.training.strategy_options import (
    AGGREGATE_AT,
    EVERY,
    OUTER_MOMENTUM,
    OUTER_RATE,
    PACE,
    REPLICA,
    WEIGH,
)

__all__ = ["Diloco"]


class Diloco(PeriodicExchange):
    name = "diloco"
    summary = "train alone for H steps, then apply the mean pseudo-gradient by Nesterov momentum; sites wait for it"
    source = "Douillard et al. 2023, arXiv:2311.08105"
    options = (EVERY, OUTER_RATE, OUTER_MOMENTUM, REPLICA, AGGREGATE_AT, PACE, WEIGH)
    published = True
    quality = DILOCO
    shown = (("every", 500),)  # of the paper
