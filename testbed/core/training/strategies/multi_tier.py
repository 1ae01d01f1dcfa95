"""Twin of ``multi-tier``: each step inside a site, every H steps inside a region, every H' steps between regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.core.training.periodic_exchange import Ranks, ReplicaTraining
from testbed.core.training.site_exchange import gather_in_sites, slice_groups, sum_over_replicas
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import OUTER_MOMENTUM, OUTER_RATE, PACE, WEIGH, names_by_group, whole
from testbed.core.training.twin import Equal, Mistake, Option

__all__ = ["MultiTier"]


class MultiTier(ReplicaTraining):
    name = "multi-tier"
    summary = "diloco nested: sites of a region exchange every H steps, regions every H' steps"
    source = "DiLoCo (arXiv:2311.08105) applied to tiers"
    options = (
        Option("every", 10, whole(1), "H: inner steps between two exchanges of the sites of a region"),
        Option("every_regions", 50, whole(1), "H': inner steps between two exchanges of regions; a multiple of H"),
        Option("regions", (), names_by_group, "names of sites by region, as in [[a, b], [c, d]]; else two halves"),
        OUTER_RATE,
        OUTER_MOMENTUM,
        PACE,
        WEIGH,
    )

    @property
    def every(self) -> int:
        """H."""
        return int(self.values["every"])

    @property
    def every_regions(self) -> int:
        """H'."""
        return int(self.values["every_regions"])

    @property
    def regions(self) -> tuple[tuple[str, ...], ...]:
        """Sites by region."""
        sites = self.layout.site_names
        half = -(-len(sites) // 2)
        return self.values["regions"] or tuple(filter(None, (sites[:half], sites[half:])))

    def mistakes(self) -> Sequence[Mistake]:
        mistakes = [*super().mistakes()]
        if self.every_regions % self.every:
            message = f"every_regions must be a multiple of every ({self.every}), got {self.every_regions}"
            fix = f"write every_regions: {max(1, self.every_regions // self.every) * self.every}"
            mistakes.append(Mistake("every_regions", message, fix))
        named = [name for region in self.values["regions"] for name in region]
        sites = self.layout.site_names
        for name in dict.fromkeys(name for name in named if name not in sites):
            message = f"unknown site '{name}' (available: {', '.join(sites)})"
            mistakes.append(Mistake("regions", message, "name a site"))
        for name in dict.fromkeys(name for name in named if named.count(name) > 1):
            mistakes.append(Mistake("regions", f"site {name} is in more than one region", "name each site once"))
        if named and (missing := [name for name in sites if name not in named]):
            mistakes.append(Mistake("regions", f"no region has {', '.join(missing)}", "put every site into a region"))
        return mistakes

    def operations(self, step: int) -> Sequence[Operation]:
        layout, last = self.layout, self.layout.steps
        if not 1 <= step <= last:
            return ()
        operations, upper = self.mean_gradients(step), step % self.every_regions == 0 or step == last
        if step % self.every and not upper:
            return operations
        size = layout.payload_bytes / layout.slices
        lower_groups, upper_groups = self._groups(), self._groups_of_regions()
        groups = [*lower_groups, *upper_groups] if upper else lower_groups
        sums = [Operation("all_reduce", ranks, size, "pseudo-gradients", name) for name, ranks in groups]
        operations += sum_over_replicas(sums, layout)
        if upper:
            regions = [(name, ranks) for name, ranks in lower_groups if len(ranks) > 1]
            operations += [Operation("broadcast", ranks, size, "parameters", name) for name, ranks in regions]
        return [*operations, *gather_in_sites(layout, layout.payload_bytes)]

    def busy_steps(self) -> Sequence[int]:
        return range(self.every, self.cycle + 1, self.every)

    def equal(self, step: int) -> Sequence[Equal]:
        agreeing: Sequence[Ranks] = self.replicas
        if step == 0 or step % self.every_regions == 0 or step >= self.layout.steps:
            agreeing = [self.layout.everyone]
        elif step % self.every == 0:
            agreeing = self._ranks_by_region
        return [
            *(Equal("parameters", ranks) for ranks in agreeing),
            *(Equal("region", ranks) for _, ranks in self._groups()),
            *(Equal("outer", ranks) for _, ranks in slice_groups(self.layout)),
        ]

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        if name == "outer":
            since = (step - 1) // self.every_regions * self.every_regions
            leaders = [ranks for _, ranks in self._groups_of_regions()]
            return self.token_shares(leaders, self._ranks_by_region, since, step)
        shares: dict[int, float] = {}
        for region, groups in zip(self.regions, self._groups_by_region, strict=True):
            sites = [self.layout.members[site] for site in region]
            shares |= self.token_shares(groups, sites, (step - 1) // self.every * self.every, step)
        return shares

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self.every_regions)

    def outer_updates(self, step: int) -> int:
        return step // self.every + (step >= self.layout.steps and step % self.every > 0)

    @property
    def longest_gap(self) -> int:
        return self.every_regions

    @property
    def _ranks_by_region(self) -> list[Ranks]:
        return [tuple(rank for site in region for rank in self.layout.members[site]) for region in self.regions]

    @property
    def _groups_by_region(self) -> list[list[Ranks]]:
        """Ranks, of each region and slice, that exchange it."""
        members, slices = self.layout.members, range(self.layout.slices)
        return [[tuple(members[site][index] for site in region) for index in slices] for region in self.regions]

    def _groups(self) -> list[tuple[str, Ranks]]:
        """Return name and ranks of each group of a region that exchanges a slice."""
        return [
            (f"region:{number}:{index}", ranks)
            for number, groups in enumerate(self._groups_by_region)
            for index, ranks in enumerate(groups)
        ]

    def _groups_of_regions(self) -> list[tuple[str, Ranks]]:
        """Return name and ranks of each group that exchanges a slice between regions, by their first sites."""
        return [
            (f"regions:{index}", tuple(ranks[0] for ranks in groups))
            for index, groups in enumerate(zip(*self._groups_by_region, strict=True))
        ]
