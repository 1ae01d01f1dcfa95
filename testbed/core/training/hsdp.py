"""Twin of ``hsdp``: sharded over the ranks of a site; the mean gradient of each shard is taken over the sites."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.fsdp import Fsdp, groups_of_tensors, padded_bytes
from testbed.core.training.layout import Layout
from testbed.core.training.site_exchange import slice_groups
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Mistake

__all__ = ["Hsdp", "unequal_sites"]


def unequal_sites(layout: Layout, option: str, why: str) -> list[Mistake]:
    """Return a mistake if sites have different numbers of ranks."""
    counts = {name: len(ranks) for name, ranks in layout.members.items()}
    if len(set(counts.values())) == 1:
        return []
    found = ", ".join(f"{name} has {count}" for name, count in counts.items())
    least = min(counts.values())
    return [Mistake(option, f"expected equally many ranks at each site, {why}; {found}", f"place {least} at each site")]


class Hsdp(Fsdp):
    name = "hsdp"
    summary = "shard over the ranks of each site; average the gradients of a shard over the sites"
    source = "Zhao et al. 2023, hybrid sharding, arXiv:2304.11277; torch fully_shard over a mesh (site, rank)"
    # Each site holds the whole model, but torch's mesh is fixed: a lost site ends the attempt.
    replicated = False

    def mistakes(self) -> Sequence[Mistake]:
        return unequal_sites(self.layout, "strategy", "because each shard is averaged with its like")

    def operations(self, step: int) -> Sequence[Operation]:
        return (*super().operations(step), *(self._across() if 1 <= step <= self.layout.steps else ()))

    def _shard_groups(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        return [(f"site:{name}", ranks) for name, ranks in self.layout.members.items()]

    def _across(self) -> list[Operation]:
        layout, ranks_in_site = self.layout, self.layout.slices
        if len(layout.site_names) == 1:
            return []
        sizes, slices = padded_bytes(layout, ranks_in_site), slice_groups(layout)
        return [
            Operation("all_reduce", ranks, sizes[it] / ranks_in_site, "gradients", name, it)
            for it in reversed(groups_of_tensors(layout))
            for name, ranks in slices
        ]

    def equal(self, step: int) -> Sequence[Equal]:
        return [Equal("shard", ranks) for _, ranks in slice_groups(self.layout)]
