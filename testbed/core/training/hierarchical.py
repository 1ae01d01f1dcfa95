"""Twin of ``hierarchical``: the mean gradient of all ranks in each step, in two levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.core.training.ddp import Ddp
from testbed.core.training.site_exchange import (
    gather_in_sites,
    slice_groups,
    sum_across,
    unknown_aggregator,
)
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import AGGREGATE_AT
from testbed.core.training.twin import Mistake

__all__ = ["Hierarchical"]


class Hierarchical(Ddp):
    name = "hierarchical"
    summary = "average gradients in every step in two levels: in the site, between sites by slices, in the site"
    source = "two-level all-reduce, as of BlueConnect (Cho et al., MLSys 2019)"
    published = False
    options = (*(it for it in Ddp.options if it.name != "bits"), AGGREGATE_AT)

    def mistakes(self) -> Sequence[Mistake]:
        return unknown_aggregator(self.layout, self.values["aggregate_at"])

    def operations(self, step: int) -> Sequence[Operation]:
        if not self._exchanges(step):
            return ()
        layout, payload = self.layout, self.layout.payload_bytes
        equal = len({len(ranks) for ranks in layout.members.values()}) == 1
        scatter = [
            Operation("reduce_scatter" if equal else "all_reduce", ranks, payload, "gradients", f"site:{name}")
            for name, ranks in layout.members.items()
            if len(ranks) > 1
        ]
        groups = slice_groups(layout, suffix="/gradients")
        across = [
            it
            for name, ranks in groups
            for it in sum_across(layout, self.values["aggregate_at"], ranks, payload / len(groups), "gradients", name)
        ]
        stages = (*scatter, *across, *gather_in_sites(layout, payload, "gradients", "/gather"))
        return tuple(replace(it, parts=int(self.values["buckets"])) for it in stages)
