"""Routes of a topology by the ducts that they use, and how often cuts separate its sites. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.failure_costs import availability, failure_rate_hz, route_availability
from testbed.core.shared_risk.audit import MOST_SITES_FOR_ALL_PAIRS, ducts_of
from testbed.core.shared_risk.connectivity import Failure, Fibers
from testbed.core.topology.model import Topology

__all__ = ["DuctRoutes", "RouteAvailability", "duct_routes", "single_route"]

MOST_ROUTES: Final = 10
"""Routes of a pair of sites that count, the shortest first; with more, the availability is a lower bound."""


@dataclass(frozen=True)
class DuctRoutes:
    """Ducts and the routes over them.

    Attributes:
        lengths_m: length of each duct in metres.
        pairs: pairs of sites, and the ducts of each of their routes.
        separating: ducts whose cut alone separates sites.
    """

    lengths_m: Mapping[str, float]
    pairs: tuple[tuple[tuple[str, str], tuple[frozenset[str], ...]], ...]
    separating: frozenset[str]

    def total_m(self) -> float:
        """Return the metres of all ducts; one that links share counts once."""
        return sum(self.lengths_m.values())

    def separating_m(self) -> float:
        """Return the metres on which a cut separates sites."""
        return sum(self.lengths_m[duct] for duct in self.separating)

    def availability(self, cuts_per_1000_km_year: float, repair_s: float) -> RouteAvailability:
        """Return that of the pair of sites that is separated most, exactly, also if its routes share ducts."""
        up = {
            duct: availability(failure_rate_hz(route_m=metres, cuts_per_1000_km_year=cuts_per_1000_km_year), repair_s)
            for duct, metres in self.lengths_m.items()
        }
        pairs = [RouteAvailability(pair, len(routes), route_availability(routes, up)) for pair, routes in self.pairs]
        return min(pairs, key=lambda pair: pair.share)


@dataclass(frozen=True)
class RouteAvailability:
    """The share of time in which at least one of ``routes`` routes ``between`` two sites is up."""

    between: tuple[str, str]
    routes: int
    share: float


def duct_routes(topology: Topology) -> DuctRoutes:
    """Return the routes of ``topology``: of all pairs of up to 16 sites, else of adjacent sites.

    A second path of a link is a route of its own. A route whose ducts include all of another's does not count.
    """
    fibers = Fibers(topology)
    names = [site.name for site in topology.sites]
    pairs = (
        list(itertools.combinations(names, 2))
        if len(names) <= MOST_SITES_FOR_ALL_PAIRS
        else list(dict.fromkeys(link.between for link in topology.links))
    )
    used = ducts_of(topology)
    lengths = {duct.name: duct.length_m for duct in topology.ducts}
    whole = len(fibers.islands(Failure()))
    separating = (duct for duct in used if len(fibers.islands(Failure(ducts=frozenset({duct})))) > whole)
    return DuctRoutes(
        {duct: lengths[duct] for duct in used},
        tuple((pair, _routes(fibers, *pair)) for pair in pairs),
        frozenset(separating),
    )


def _routes(fibers: Fibers, one: str, other: str) -> tuple[frozenset[str], ...]:
    minimal: list[frozenset[str]] = []
    for ducts in itertools.islice(fibers.routes(one, other), MOST_ROUTES):
        if not any(route <= ducts for route in minimal):
            minimal = [*(route for route in minimal if not ducts <= route), ducts]
    return tuple(minimal)


def single_route(length_m: float) -> DuctRoutes:
    """Return the one fiber of a prediction without a topology."""
    return DuctRoutes({"fiber": length_m}, ((("a", "b"), (frozenset({"fiber"}),)),), frozenset({"fiber"}))
