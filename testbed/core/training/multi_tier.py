"""Twin of ``multi-tier``: each step inside a site, every H steps inside a region, every H' steps between regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.core.training.inner_steps import PACE, InnerSteps
from testbed.core.training.site_exchange import gather_in_sites, slice_groups, sum_over
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import OUTER_MOMENTUM, OUTER_RATE, WEIGH, names_by_group, whole
from testbed.core.training.twin import Equal, Mistake, Option

__all__ = ["MultiTier"]


class MultiTier(InnerSteps):
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
    def regions(self) -> tuple[tuple[str, ...], ...]:
        """Sites by region."""
        names = self.layout.site_names
        half = -(-len(names) // 2)
        return self.values["regions"] or tuple(it for it in (names[:half], names[half:]) if it)

    def mistakes(self) -> Sequence[Mistake]:
        found = self.wrong_pace()
        every, upper = self.values["every"], self.values["every_regions"]
        if upper % every:
            message = f"every_regions must be a multiple of every ({every}), got {upper}"
            found.append(Mistake("every_regions", message, f"write every_regions: {max(1, upper // every) * every}"))
        given = [name for region in self.values["regions"] for name in region]
        sites = self.layout.site_names
        for name in dict.fromkeys(it for it in given if it not in sites):
            found.append(Mistake("regions", f"unknown site '{name}' (available: {', '.join(sites)})", "name a site"))
        for name in dict.fromkeys(it for it in given if given.count(it) > 1):
            found.append(Mistake("regions", f"site {name} is in more than one region", "name each site once"))
        if given and (missing := [name for name in sites if name not in given]):
            found.append(Mistake("regions", f"no region has {', '.join(missing)}", "put every site into a region"))
        return tuple(found)

    def operations(self, step: int) -> Sequence[Operation]:
        if not 1 <= step <= self.layout.steps:
            return ()
        layout, payload = self.layout, self.layout.payload_bytes
        found = self.mean_inside(step)
        upper = step % self.values["every_regions"] == 0 or step == layout.steps
        if step % self.values["every"] and not upper:
            return found
        for region, index, ranks in self._groups():
            found += sum_over(ranks, payload / layout.slices, "pseudo-gradients", f"region:{region}:{index}")
        if upper:
            for index in range(layout.slices):
                leaders = tuple(ranks[0] for _, of, ranks in self._groups() if of == index)
                found += sum_over(leaders, payload / layout.slices, "pseudo-gradients", f"regions:{index}")
            for region, index, ranks in self._groups():
                if len(ranks) > 1:
                    name = f"region:{region}:{index}"
                    found.append(Operation("broadcast", ranks, payload / layout.slices, "parameters", name))
        return (*found, *gather_in_sites(layout, payload))

    def busy_steps(self) -> Sequence[int]:
        return range(int(self.values["every"]), self.cycle + 1, int(self.values["every"]))

    def equal(self, step: int) -> Sequence[Equal]:
        layout = self.layout
        tops = [Equal("outer", ranks) for _, ranks in slice_groups(layout)]
        mates = [Equal("region", ranks) for _, _, ranks in self._groups()]
        if step == 0 or step % self.values["every_regions"] == 0 or step >= layout.steps:
            return (Equal("parameters", tuple(range(layout.world_size))), *mates, *tops)
        if step % self.values["every"] == 0:
            regions = [tuple(rank for name in region for rank in layout.members[name]) for region in self.regions]
            return (*(Equal("parameters", ranks) for ranks in regions), *mates, *tops)
        return (*(Equal("parameters", ranks) for ranks in layout.members.values()), *mates, *tops)

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        if not self.by_tokens:
            return {}
        layout = self.layout
        sites = [[layout.members[site] for site in region] for region in self.regions]
        if name == "outer":
            every = int(self.values["every_regions"])
            regions = [[rank for ranks in region for rank in ranks] for region in sites]
            leaders = [[region[0][index] for region in sites] for index in range(layout.slices)]
            return self.of_members(leaders, self.shares_of(regions, (step - 1) // every * every, step))
        every = int(self.values["every"])
        found: dict[int, float] = {}
        for region in sites:
            mates = [[ranks[index] for ranks in region] for index in range(layout.slices)]
            found |= self.of_members(mates, self.shares_of(region, (step - 1) // every * every, step))
        return found

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self.values["every_regions"])

    def outer_updates(self, step: int) -> int:
        every = int(self.values["every"])
        return step // every + (step >= self.layout.steps and step % every > 0)

    @property
    def longest_gap(self) -> int:
        return int(self.values["every_regions"])

    def _groups(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return (region, slice, ranks) of each group of a region that exchanges a slice."""
        members = self.layout.members
        return [
            (region, index, tuple(members[name][index] for name in names))
            for region, names in enumerate(self.regions)
            for index in range(self.layout.slices)
        ]
