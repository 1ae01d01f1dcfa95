"""Twin of ``local-sgd``: replicas train alone, and every H steps take the mean of all parameters."""

from __future__ import annotations

from testbed.core.training.periodic_exchange import PeriodicExchange
from testbed.core.training.published_quality import GUESS
from testbed.core.training.strategy_options import AGGREGATE_AT, EVERY, PACE, REPLICA, WEIGH

__all__ = ["LocalSgd"]


class LocalSgd(PeriodicExchange):
    name = "local-sgd"
    summary = "train alone for H steps, then average the parameters of all sites; sites wait for it"
    source = "Stich 2019, arXiv:1805.09767; Lin et al. 2020, arXiv:1808.07217"
    options = (EVERY, REPLICA, AGGREGATE_AT, PACE, WEIGH)
    payload = "parameters"
    quality = (GUESS,)
    shown = (("every", 16),)  # our choice
