"""What twins share whose sites step together, and may take several inner steps in one step of the job.

With ``pace: time`` the slowest site takes one inner step in a step of the job, and each other one as many as fit into
the same time by the declared speeds: after s steps, floor(s v / v of the slowest). Exchanges are counted in steps of
the job, so all sites make them together, and equality, commits and bytes between sites are those of equal sites.

With ``weigh: tokens`` a replica's share in a mean is its share in the tokens that all trained on since the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from testbed.core.training.site_exchange import mean_in_sites
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice
from testbed.core.training.twin import Mistake, Option, Twin

__all__ = ["PACE", "InnerSteps"]

PACE = Option(
    "pace", "steps", choice("steps", "time"), "time: a faster site takes more inner steps, by the declared speeds"
)


class InnerSteps(Twin):
    """Has the options ``pace`` and ``weigh``, and perhaps ``replica``."""

    def wrong_pace(self) -> list[Mistake]:
        """Return the mistake of a pace by time without speeds."""
        if self.values.get("pace") != "time" or self.layout.speeds:
            return []
        message = "time needs the declared speeds of sites, and none is declared"
        return [Mistake("pace", message, "write compute: {at_least: 80ms, speeds: {SITE: 0.5}}, or pace: steps")]

    def inner_steps(self, step: int, rank: int = 0) -> int:
        return int(step * self._faster[self.layout.sites[rank]])

    def pace(self, site: str) -> float:
        return float(self._faster[site])

    def mean_inside(self, step: int) -> list[Operation]:
        """Return the operations inside the sites of all inner steps in ``step``."""
        layout = self.layout
        return [
            it
            for it in mean_in_sites(layout, layout.payload_bytes)
            for _ in range(self.inner_steps(step, it.ranks[0]) - self.inner_steps(step - 1, it.ranks[0]))
        ]

    def shares_of(self, replicas: Sequence[Sequence[int]], since: int, step: int) -> Sequence[float]:
        """Return the share of each replica, ranks each, in the tokens of the steps after ``since``, until ``step``."""
        counts = [
            sum(self.inner_steps(step, rank) - self.inner_steps(since, rank) for rank in ranks) for ranks in replicas
        ]
        return [count / sum(counts) for count in counts]

    def of_members(self, groups: Sequence[Sequence[int]], shares: Sequence[float]) -> Mapping[int, float]:
        """Return ``shares`` by rank: those of the members of each of ``groups``, in the order of replicas."""
        return {rank: share for ranks in groups for rank, share in zip(ranks, shares, strict=True)}

    @property
    def by_tokens(self) -> bool:
        return self.values.get("weigh") == "tokens"

    @property
    def replicas(self) -> list[tuple[int, ...]]:
        """Ranks of each replica."""
        if self.values.get("replica") == "rank":
            return [(rank,) for rank in range(self.layout.world_size)]
        return list(self.layout.members.values())

    @cached_property
    def _faster(self) -> Mapping[str, Fraction]:
        """How many inner steps a site takes in a step."""
        if self.values.get("pace") != "time":
            return dict.fromkeys(self.layout.site_names, Fraction(1))
        # As they are written in decimals: 0.6 is three times 0.2, which as floating-point numbers it is not.
        speeds = {name: Fraction(str(self.layout.speeds.get(name, 1.0))) for name in self.layout.site_names}
        slowest = min(speeds.values())
        return {name: speed / slowest for name, speed in speeds.items()}
