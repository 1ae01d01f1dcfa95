"""A job that is predicted: a strategy's twin, a network, compute, a library. Pure.

Rates and payloads are those of the lab, of which ``scale`` makes full scale; times are the same at both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from testbed.core.prediction.as_published import BITS, Published, simulate_published
from testbed.core.prediction.library_costs import GLOO, Library, LibraryCosts, Moved
from testbed.core.prediction.network import Network
from testbed.core.prediction.simulator import Simulated, TooMany, simulate
from testbed.core.prediction.tcp_limits import usable_rate_bps
from testbed.core.training.twin import Twin

__all__ = ["Job", "Tcp", "represented"]

_MOST_STEPS: Final = 20_000
MOST_RANKS: Final = 16
"""Ranks of a site that are represented one by one; more ranks do the same at the same time."""


@dataclass(frozen=True)
class Tcp:
    """What TCP allows the connections of one exchange: together, in bytes of window, and in loss of packets.

    ``cold``: they start slowly after idling.
    """

    connections: int = 1
    window_bytes: float = math.inf
    loss: float = 0.0
    cold: bool = False

    def usable_bps(self, rate_bps: float, delay_s: float) -> float:
        """Return the payload rate that these connections reach together."""
        return usable_rate_bps(
            rate_bps, 2 * delay_s, connections=self.connections, window_bytes=self.window_bytes, loss=self.loss
        )


def represented(ranks: Mapping[str, int]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the sites of the ranks of a layout that stands for ``ranks`` of each site, and for how many each stands.

    >>> represented({"a": 2, "b": 50_000})[1]
    {'a': 1.0, 'b': 3125.0}
    """
    counts = {site: min(count, MOST_RANKS) for site, count in ranks.items()}
    sites = tuple(site for site, count in counts.items() for _ in range(count))
    return sites, {site: ranks[site] / count for site, count in counts.items()}


@dataclass(frozen=True)
class Job:
    """What a prediction is made from.

    Attributes:
        twin: of a layout whose ranks stand for ``stands_for`` ranks each, by site.
        network: with rates of the lab.
        steps_s: compute of a step of each site, in seconds.
        scale: full scale has so many times the rates and payloads.
        message_scale: the library's messages are so many times smaller than those of the twin.
        as_published: simulate as a paper does, in place of what the agents do (``as_published.py``).
        beyond_s: what a measured run of this job took beyond its simulation, in seconds of a mean step.
        quartiles: the library as fast, and as slow, as the quartiles of its calibration; () if it was not measured.
    """

    twin: Twin
    network: Network
    steps_s: Mapping[str, float]
    stands_for: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0
    message_scale: float = 1.0
    library: Library = GLOO
    tcp: Tcp = Tcp()
    as_published: bool = False
    beyond_s: float = 0.0
    quartiles: tuple[Library, ...] = ()
    moved: dict[Hashable, Moved] = field(default_factory=dict, repr=False, compare=False)
    """What exchanges move, by their likeness, which no change of rates or delays changes."""

    def but(self, **changes: Any) -> Job:
        """Return this job with ``changes``."""
        if changes.keys() & {"twin", "stands_for"}:
            changes = {"moved": {}, **changes}
        return replace(self, **changes)

    @property
    def sites(self) -> int:
        return len(self.twin.layout.site_names)

    @property
    def ranks(self) -> int:
        members = self.twin.layout.members
        return sum(round(len(ranks) * self.stands_for.get(site, 1)) for site, ranks in members.items())

    @property
    def ranks_per_site(self) -> int:
        """Ranks of the largest site."""
        members = self.twin.layout.members
        return max(round(len(ranks) * self.stands_for.get(site, 1)) for site, ranks in members.items())

    @property
    def step_s(self) -> float:
        """Compute of a step at the fastest site, which is the one that a prediction is about."""
        return min(self.steps_s.values())

    @property
    def site(self) -> str:
        return min(self.steps_s, key=lambda site: self.steps_s[site])

    @property
    def delay_s(self) -> float:
        return self.network.delay_s

    @property
    def rate_bps(self) -> float:
        """Payload rate of the slowest fiber at full scale, as TCP lets it be used."""
        return self.costs.network.rate_bps * self.scale

    @cached_property
    def costs(self) -> LibraryCosts:
        """What exchanges cost."""
        rates = {
            lane: self.tcp.usable_bps(rate_bps * self.scale, self.network.delay_s) / self.scale
            for lane, rate_bps in self.network.rates_bps.items()
        }
        return LibraryCosts(
            self.twin.layout,
            replace(self.network, rates_bps=rates),
            self.library,
            self.steps_s,
            self.stands_for,
            self.tcp.cold,
            self.tcp.connections,
            self.scale,
            self.message_scale,
            self.twin.sliced,
            self.moved,
        )

    def simulate(self, *, keep: bool = False) -> Simulated:
        """Return what a mean step takes. Raises TooMany."""
        if self.as_published:
            return simulate_published(self._published)
        if len(self.twin.busy_steps()) > _MOST_STEPS:
            raise TooMany(f"a cycle has more than {_MOST_STEPS} steps that exchange something between sites")
        processes, stand_for = self.twin.processes(), self.sites_by_process
        if stand_for is not None:
            processes = {site: processes[site] for site in stand_for}
        outcome = simulate(
            processes,
            self.costs,
            cycle=self.twin.cycle,
            cycles={name: self.twin.cycle_of(name) for name in self.twin.layout.site_names},
            site=self.site,
            stand_for=stand_for,
            keep=keep,
            free=not self.twin.waits,
            pace=self.twin.pace(self.site),
        )
        return outcome.beyond(self.beyond_s) if self.beyond_s else outcome

    @property
    def _published(self) -> Published:
        """The paper's job: by H, P, tau and bits of the strategy, where it has them."""
        values, layout = self.twin.values, self.twin.layout
        return Published(
            self.step_s,
            layout.elements,
            layout.layers,
            self.costs.network.rate_bps,
            next(iter(self.network.rates_bps), "fiber"),
            every=int(values.get("every", values.get("accumulate", 1))),
            fragments=int(values["fragments"]) if "fragments" in values else None,
            overlap=int(values.get("overlap", 0)),
            bits=min(BITS, int(values.get("bits", BITS))),
        )

    @property
    def sites_by_process(self) -> dict[str, int] | None:
        """For how many sites that do the same one stands; None if sites differ by what they do."""
        if not self.twin.alike:
            return None
        first: dict[object, str] = {}
        counts: dict[str, int] = {}
        for site, ranks in self.twin.layout.members.items():
            facts = (self.steps_s[site], len(ranks), self.stands_for.get(site, 1), self.network.fabric_bps.get(site))
            one = first.setdefault(facts, site)
            counts[one] = counts.get(one, 0) + 1
        return counts
