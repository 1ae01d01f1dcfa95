"""multi-tier: gradients inside a site in each step, sites of a region every H steps, regions every H' steps.

diloco nested: a region's outer parameters Θ are the inner ones of the tier above. After H' steps, a multiple of H, the
regions' Θ are exchanged between the first sites of the regions and copied to the others; the upper tier restarts the
lower one: its parameters become those of all regions, its momentum is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.exchange.outer_optimizers import Nesterov
from testbed_agents.exchange.slices import Slice
from testbed_agents.exchange.sums import weighted_mean
from testbed_agents.strategies.periodic_exchange import ReplicaTraining
from testbed_agents.strategies.strategy import Context

__all__ = ["MultiTier"]


class MultiTier(ReplicaTraining):
    """``every``: H; ``every_regions``: H', a multiple of H; ``regions``: names of sites by region.

    Without ``regions``, the first half of the sites is one region and the second half another.
    """

    def __init__(
        self,
        every: int = 10,
        every_regions: int = 50,
        regions: Sequence[Sequence[str]] = (),
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__("site", pace, weigh)
        self._every, self._every_regions, self._regions = every, every_regions, regions
        self._rate, self._momentum = outer_rate, outer_momentum
        self._version = torch.zeros((), dtype=torch.int64)

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        self.slice = Slice(trained, self.replicas)
        groups, index = context.groups, self.replicas.slice
        names = groups.site_names
        half = -(-len(names) // 2)
        halves = filter(None, (names[:half], names[half:]))
        regions = [tuple(region) for region in self._regions] or list(halves)
        self._sites = [[groups.members[name] for name in region] for region in regions]
        for number in range(self.replicas.slices):
            within = [tuple(groups.members[name][number] for name in region) for region in regions]
            leaders = tuple(ranks[0] for ranks in within)
            between = groups.new(leaders, f"regions:{number}", apart=True)
            for region, ranks in enumerate(within):
                inside = groups.new(ranks, f"region:{region}:{number}", apart=True)
                if number == index and groups.rank in ranks:
                    self._between, self._leaders = between, leaders
                    self._inside, self._mates, self._own_region = inside, ranks, region
        values, hooks = self.slice.of_parameters(), groups.hooks
        self._region = Nesterov(values.clone(), self._rate, self._momentum, hooks, "region")
        self._top = Nesterov(values, self._rate, self._momentum, hooks)
        return trained

    def after_step(self, step: int) -> None:
        if step % self._every == 0:
            self._exchange(step, upper=self._ends(step))

    def finish(self, step: int) -> None:
        if step % self._every:
            self._exchange(step, upper=True)
        elif not self._ends(step):  # the sites of a region have exchanged after this step already
            self._exchange(step, upper=True, lower=False)

    def _ends(self, step: int) -> bool:
        """Whether the regions exchange after ``step``, a multiple of H."""
        return step % self._every_regions == 0 or step == self.context.steps

    def _exchange(self, step: int, *, upper: bool, lower: bool = True) -> None:
        if self.slice.holds:
            if lower:
                gradient = self._region.values - self.slice.of_parameters()
                shares = self.shares((step - 1) // self._every * self._every, step, self._sites[self._own_region])
                self._region.step(
                    weighted_mean("region", gradient, self._inside, self._mates, shares, self.context.checks)
                )
            if upper:
                self._exchange_regions(step)
        self.slice.spread(self._region.values)
        self._version += 1

    def _exchange_regions(self, step: int) -> None:
        if self.context.groups.rank in self._leaders:
            gradient = self._top.values - self._region.values
            members = [[rank for site in region for rank in site] for region in self._sites]
            shares = self.shares((step - 1) // self._every_regions * self._every_regions, step, members)
            self._top.step(weighted_mean("outer", gradient, self._between, self._leaders, shares, self.context.checks))
        if len(self._mates) > 1:
            self.replicas.hooks.await_all()  # the first of them waits for the other regions
            dist.broadcast(self._top.values, self._mates[0], group=self._inside)
        self._region.restart(self._top.values)

    def state(self) -> dict[str, Tensor]:
        tiers = {"region": self._region, "top": self._top}
        saved = {f"{tier}.{name}": tensor for tier, outer in tiers.items() for name, tensor in outer.state().items()}
        return {"outer_version": self._version, **saved}

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {**super().fingerprints(), "region": [self._region.values], "outer": [self._top.values]}

    def outer_slices(self) -> Iterable[tuple[Slice, Tensor]]:
        return [(self.slice, self._top.values)]

    @property
    def outer_version(self) -> int:
        return int(self._version)
