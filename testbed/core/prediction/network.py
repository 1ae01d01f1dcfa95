"""The network between sites as the simulator sees it: routes of lanes, with rates and delays. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from testbed.core.physics.fiber import DEFAULT_FIBER, propagation_s
from testbed.core.plan import routing
from testbed.core.topology.model import Topology

__all__ = ["MSS_BYTES", "PAYLOAD_SHARE", "Network", "Route", "length_m", "payload_rate_bps"]

MSS_BYTES: Final = 1448
"""TCP payload of one packet at an MTU of 1500, with timestamps."""
PAYLOAD_SHARE: Final = MSS_BYTES / 1538
"""TCP payload per byte on the wire at an MTU of 1500: 1448 bytes of 1500 + 38 (IEEE 802.3; TCP with timestamps)."""


def payload_rate_bps(line_rate_bps: float) -> float:
    """Return the payload rate of a line rate, both in bit/s: 1448 of 1538 bytes.

    >>> round(payload_rate_bps(800e6) / 1e6, 1)
    753.2
    """
    return PAYLOAD_SHARE * line_rate_bps


def length_m(delay_s: float) -> float:
    """Return the fiber whose one-way delay is ``delay_s``, in metres: 5 us per km.

    >>> length_m(200e-6)
    40000.0
    """
    return delay_s / propagation_s(1.0, DEFAULT_FIBER)


@dataclass(frozen=True)
class Route:
    """The way from a site to another: lanes, each a direction of a fiber, and the one-way delay in seconds."""

    lanes: tuple[str, ...]
    delay_s: float


@dataclass(frozen=True)
class Network:
    """Sites and the routes between them.

    Attributes:
        routes: by source and destination.
        rates_bps: payload of each lane in bit/s; infinite is allowed.
        lengths_m: of the fiber of each lane, in metres.
        fabric_bps: payload that a node sends inside its site while all of its nodes do; sites without a limit are left
            out.
    """

    sites: tuple[str, ...]
    routes: Mapping[tuple[str, str], Route]
    rates_bps: Mapping[str, float]
    lengths_m: Mapping[str, float]
    fabric_bps: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def alike(cls, sites: Sequence[str], rate_bps: float, delay_s: float) -> Network:
        """Return a network in which each two sites have a fiber of their own.

        >>> Network.alike(["a", "b"], 1e9, 5e-3).routes["a", "b"]
        Route(lanes=('a>b',), delay_s=0.005)
        """
        pairs = list(itertools.permutations(sites, 2))
        lanes = {pair: f"{pair[0]}>{pair[1]}" for pair in pairs}
        return cls(
            tuple(sites),
            {pair: Route((lanes[pair],), delay_s) for pair in pairs},
            dict.fromkeys(lanes.values(), rate_bps),
            dict.fromkeys(lanes.values(), length_m(delay_s)),
        )

    @classmethod
    def of_topology(cls, topology: Topology) -> Network:
        """Return the network of a healthy lab, with rates of the lab."""
        fibers = {name: (link, link.impairment(name)) for link in topology.links for name in link.directions}
        hops: dict[frozenset[str], tuple[str, float]] = {}  # several directions where parallel links share the flows
        rates, lengths = dict[str, float](), dict[str, float]()
        paths = routing.paths(topology)
        for hop in {hop for path in paths.values() for hop in path}:
            lane = "+".join(sorted(hop))
            hops[hop] = lane, max(fibers[name][1].delay_s for name in hop)
            rates[lane] = payload_rate_bps(sum(fibers[name][1].rate_bps for name in hop))
            lengths[lane] = max(fibers[name][0].length_m for name in hop)
        routes = {
            pair: Route(tuple(hops[hop][0] for hop in path), sum(hops[hop][1] for hop in path))
            for pair, path in paths.items()
        }
        return cls(
            tuple(site.name for site in topology.sites),
            routes,
            rates,
            lengths,
            {
                site.name: payload_rate_bps(site.fabric_bps / site.oversubscription)
                for site in topology.sites
                if site.fabric_bps
            },
        )

    def with_rate(self, rate_bps: float) -> Network:
        """Return the network with one payload rate for all lanes."""
        return replace(self, rates_bps=dict.fromkeys(self.rates_bps, rate_bps))

    def times(self, factor: float) -> Network:
        """Return the network with rates of so many times."""
        return replace(
            self,
            rates_bps={lane: factor * rate_bps for lane, rate_bps in self.rates_bps.items()},
            fabric_bps={site: factor * rate_bps for site, rate_bps in self.fabric_bps.items()},
        )

    def with_delay(self, delay_s: float) -> Network:
        """Return the network with one delay for all routes, each as long as that says."""
        routes = {pair: replace(route, delay_s=delay_s) for pair, route in self.routes.items()}
        return replace(self, routes=routes, lengths_m=dict.fromkeys(self.lengths_m, length_m(delay_s)))

    @cached_property
    def rate_bps(self) -> float:
        """Payload rate of the slowest lane that a route takes."""
        used = {lane for route in self.routes.values() for lane in route.lanes}
        return min((self.rates_bps[lane] for lane in used), default=math.inf)

    @cached_property
    def delay_s(self) -> float:
        """One-way delay of the longest hop from a site to the next one, the last followed by the first."""
        names = self.sites
        hops = [pair for pair in zip(names, names[1:] + names[:1], strict=True) if pair in self.routes]
        return max((self.routes[pair].delay_s for pair in hops), default=0.0)
