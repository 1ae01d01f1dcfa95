"""Failures, checkpoints and what is left: rates, the best interval, goodput. Pure; seconds throughout.

====================  ==============================================  ==================================================
quantity              computed as                                     source
====================  ==============================================  ==================================================
failure rate          sum of ranks / M_rank, sites / M_site, and      independent, at constant rates
                      km x cuts per km and second
checkpoint interval   sqrt(2 C M)                                     Young, CACM 17(9), 1974
the same              sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M)    Daly, FGCS 22(3), 2006; M if C >= 2M
                      - C
waste, first order    C / t_c + (t_c / 2 + R) / M                     Young; holds while t_c, R << M
time per unit work    M / t_c e^(R/M) (e^((t_c + C) / M) - 1)         Daly: failures during restarts and checkpoints too
availability          inclusion and exclusion over routes of shared   exact for independent ducts
                      ducts
====================  ==============================================  ==================================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

__all__ = [
    "availability",
    "daly_interval_s",
    "failure_rate_hz",
    "goodput_elastic",
    "goodput_synchronous",
    "route_availability",
    "time_per_work",
    "waste",
    "young_interval_s",
]

YEAR_S = 365.25 * 86_400


def failure_rate_hz(
    *,
    ranks: int = 0,
    mtbf_rank_s: float = math.inf,
    sites: int = 0,
    mtbf_site_s: float = math.inf,
    route_m: float = 0.0,
    cuts_per_1000_km_year: float = 0.0,
) -> float:
    """Return failures per second of everything that stops a job; 1 / this is M.

    >>> round(1 / failure_rate_hz(ranks=16_384, mtbf_rank_s=5.785 * YEAR_S) / 3600, 2)  # Llama 3, hours
    3.1
    """
    cuts = route_m / 1e6 * cuts_per_1000_km_year / YEAR_S
    return ranks / mtbf_rank_s + sites / mtbf_site_s + cuts


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two checkpoints that waste least, to first order.

    >>> young_interval_s(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return the same to higher order; ``mtbf_s`` where a checkpoint takes twice that or longer."""
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def waste(checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the share of time that is lost to checkpoints, lost work and restarts, to first order."""
    return checkpoint_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def time_per_work(checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the expected wall time per second of work, 1 or more; infinite if it never ends."""
    if math.isinf(mtbf_s):
        return (interval_s + checkpoint_s) / interval_s
    try:
        growth = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + checkpoint_s) / mtbf_s)
    except OverflowError:
        return math.inf
    return mtbf_s / interval_s * growth


def goodput_synchronous(
    utilization: float, checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the share of time that is committed compute, if any failure stops all ranks."""
    return utilization / time_per_work(checkpoint_s, interval_s, restart_s, mtbf_s)


def goodput_elastic(utilization: float, learners: int, mtbf_learner_s: float, rejoin_s: float, lost_s: float) -> float:
    """Return the same if a failure stops one learner, which loses ``lost_s`` of work and is back after ``rejoin_s``.

    The others go on: elastic data-parallel training (``lost_s`` about half a step), decoupled learners (half a round).
    """
    if learners < 1:
        return 0.0
    up = mtbf_learner_s / (mtbf_learner_s + rejoin_s) if math.isfinite(mtbf_learner_s) else 1.0
    redone = min(1.0, lost_s / mtbf_learner_s) if math.isfinite(mtbf_learner_s) else 0.0
    return utilization * up * (1 - redone)


def availability(failures_hz: float, repair_s: float) -> float:
    """Return the share of time that something is up which fails at ``failures_hz`` while up, and is then repaired.

    >>> round(availability(1 / 9.0, 1.0), 6)
    0.9
    """
    return 1 / (1 + failures_hz * repair_s)


def route_availability(routes: Sequence[Collection[str]], up: Mapping[str, float]) -> float:
    """Return the probability that at least one route has all its ducts up, exactly, also if routes share ducts.

    Args:
        routes: names of the ducts of each route, at most 20 routes.
        up: availability of each duct; ducts fail independently.

    >>> round(route_availability([{"north"}, {"south"}], {"north": 0.9, "south": 0.9}), 4)
    0.99
    >>> round(route_availability([{"bridge", "north"}, {"bridge", "south"}], dict(bridge=0.9, north=1.0, south=1.0)), 4)
    0.9
    """
    if len(routes) > 20:
        raise ValueError(f"expected at most 20 routes, got {len(routes)}")
    total = 0.0
    for count in range(1, len(routes) + 1):
        for some in itertools.combinations(routes, count):
            ducts = set().union(*some)
            total -= (-1) ** count * math.prod(up[duct] for duct in ducts)
    return total
