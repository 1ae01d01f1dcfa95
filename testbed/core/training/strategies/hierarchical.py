"""Twin of ``hierarchical``: the mean gradient of all ranks in each step, in two levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.core.training.published_quality import SCALING_LAW
from testbed.core.training.site_exchange import (
    gather_in_sites,
    in_sites,
    slice_groups,
    sum_over_replicas,
    unknown_aggregator,
)
from testbed.core.training.strategies.ddp import Ddp
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import AGGREGATE_AT
from testbed.core.training.twin import Mistake

__all__ = ["Hierarchical"]


class Hierarchical(Ddp):
    name = "hierarchical"
    summary = "average gradients in every step in two levels: in the site, between sites by slices, in the site"
    source = "two-level all-reduce, as of BlueConnect (Cho et al., MLSys 2019)"
    published = False
    quality = (SCALING_LAW,)
    shown = ()
    options = (*(option for option in Ddp.options if option.name != "bits"), AGGREGATE_AT)

    def mistakes(self) -> Sequence[Mistake]:
        return unknown_aggregator(self.layout, self.values["aggregate_at"])

    def operations(self, step: int) -> Sequence[Operation]:
        if not self._exchanges(step):
            return ()
        layout, payload = self.layout, self.layout.payload_bytes
        equal = len({len(ranks) for ranks in layout.members.values()}) == 1
        groups = slice_groups(layout, suffix="/gradients")
        sums = [Operation("all_reduce", ranks, payload / len(groups), "gradients", name) for name, ranks in groups]
        stages = (
            *in_sites(layout, "reduce_scatter" if equal else "all_reduce", payload, "gradients"),
            *sum_over_replicas(sums, layout, self.values["aggregate_at"]),
            *gather_in_sites(layout, payload, "gradients", "/gather"),
        )
        return tuple(replace(stage, parts=int(self.values["buckets"])) for stage in stages)
