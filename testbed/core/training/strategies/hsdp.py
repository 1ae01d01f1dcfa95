"""Twin of ``hsdp``: sharded over the ranks of a site; the mean gradient of each shard is taken over the sites."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.published_quality import SCALING_LAW
from testbed.core.training.site_exchange import site_groups, slice_groups, unequal_sites
from testbed.core.training.strategies.fsdp import Fsdp, groups_of_tensors, padded_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Mistake

__all__ = ["Hsdp"]


class Hsdp(Fsdp):
    name = "hsdp"
    summary = "shard over the ranks of each site; average the gradients of a shard over the sites"
    source = "Zhao et al. 2023, hybrid sharding, arXiv:2304.11277; torch fully_shard over a mesh (site, rank)"
    # Each site holds the whole model, but torch's mesh is fixed: a lost site ends the attempt.
    replicated = False
    quality = (SCALING_LAW,)

    def mistakes(self) -> Sequence[Mistake]:
        return unequal_sites(self.layout, "strategy", "because each shard is averaged with its like")

    def operations(self, step: int) -> Sequence[Operation]:
        return (*super().operations(step), *(self._across() if 1 <= step <= self.layout.steps else ()))

    def _shard_groups(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return site_groups(self.layout)

    def _across(self) -> list[Operation]:
        layout, ranks_in_site = self.layout, self.layout.slices
        if len(layout.site_names) == 1:
            return []
        sizes, slices = padded_bytes(layout, ranks_in_site), slice_groups(layout)
        return [
            Operation("all_reduce", ranks, sizes[layer] / ranks_in_site, "gradients", name, layer)
            for layer in reversed(groups_of_tensors(layout))
            for name, ranks in slices
        ]

    def equal(self, step: int) -> Sequence[Equal]:
        return [Equal("shard", ranks) for _, ranks in slice_groups(self.layout)]
