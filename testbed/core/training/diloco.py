"""Twins of ``diloco`` and ``local-sgd``: replicas train alone, and every H steps exchange all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from testbed.core.training.inner_steps import PACE, InnerSteps
from testbed.core.training.site_exchange import (
    gather_in_sites,
    slice_groups,
    sum_across,
    unknown_aggregator,
)
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import AGGREGATE_AT, EVERY, OUTER_MOMENTUM, OUTER_RATE, REPLICA, WEIGH
from testbed.core.training.twin import Equal, Mistake, Option

__all__ = ["Diloco", "LocalSgd"]


class LocalSgd(InnerSteps):
    """Also the base of all whose replicas train alone for H steps, then exchange everything and wait for it."""

    name = "local-sgd"
    summary = "train alone for H steps, then average the parameters of all sites; sites wait for it"
    source = "Stich 2019, arXiv:1805.09767; Lin et al. 2020, arXiv:1808.07217"
    options: ClassVar[tuple[Option, ...]] = (EVERY, REPLICA, AGGREGATE_AT, PACE, WEIGH)
    what: ClassVar[str] = "parameters"

    def mistakes(self) -> Sequence[Mistake]:
        return [*self.wrong_pace(), *unknown_aggregator(self.layout, self.aggregate_at)]

    @property
    def aggregate_at(self) -> str:
        """The site that adds what all send to it; empty: they exchange with each other."""
        return str(self.values.get("aggregate_at", ""))

    def operations(self, step: int) -> Sequence[Operation]:
        inside: list[Operation] = []
        if 1 <= step <= self.layout.steps and self.values["replica"] == "site":
            inside = self.mean_inside(step)
        return (*inside, *(self.exchange() if self.exchanges(step) else ()))

    def busy_steps(self) -> Sequence[int]:
        return (self.cycle,)

    def exchange(self) -> Sequence[Operation]:
        """Return the operations of one exchange, those inside the sites included."""
        replica, payload = self.values["replica"], self.layout.payload_bytes
        groups = slice_groups(self.layout, replica)
        across = [
            it
            for name, ranks in groups
            for it in sum_across(self.layout, self.aggregate_at, ranks, payload / len(groups), self.what, name)
        ]
        return (*across, *(gather_in_sites(self.layout, payload) if replica == "site" else ()))

    def exchanges(self, step: int) -> bool:
        """Whether an exchange follows ``step``; one follows the last step in any case."""
        return 1 <= step <= self.layout.steps and (step % self.values["every"] == 0 or step == self.layout.steps)

    def equal(self, step: int) -> Sequence[Equal]:
        outer = [Equal("outer", ranks) for _, ranks in slice_groups(self.layout, self.values["replica"])]
        if step == 0 or self.exchanges(step):
            return (Equal("parameters", tuple(range(self.layout.world_size))), *outer)
        inside = () if self.values["replica"] == "rank" else self.layout.members.values()
        return (*(Equal("parameters", ranks) for ranks in inside), *outer)

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        if not self.by_tokens:
            return {}
        since = (step - 1) // int(self.values["every"]) * int(self.values["every"])
        groups = [ranks for _, ranks in slice_groups(self.layout, self.values["replica"])]
        return self.of_members(groups, self.shares_of(self.replicas, since, step))

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self.values["every"])

    def outer_updates(self, step: int) -> int:
        every = int(self.values["every"])
        return -(-step // every) if step >= self.layout.steps else step // every

    @property
    def longest_gap(self) -> int:
        return int(self.values["every"])


class Diloco(LocalSgd):
    name = "diloco"
    summary = "train alone for H steps, then apply the mean pseudo-gradient by Nesterov momentum; sites wait for it"
    source = "Douillard et al. 2023, arXiv:2311.08105"
    options = (EVERY, OUTER_RATE, OUTER_MOMENTUM, REPLICA, AGGREGATE_AT, PACE, WEIGH)
    published = True
    what = "pseudo-gradients"
