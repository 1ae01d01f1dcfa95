"""Twin of ``moe``: tokens travel to their experts and back in each layer; the rest is averaged in two levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import site_groups, slice_groups, sum_over_replicas, unequal_sites
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice, share, whole
from testbed.core.training.twin import Equal, Mistake, Option, Twin

__all__ = ["Moe"]

EXPERT = ("inward.weight", "inward.bias", "outward.weight", "outward.bias")
"""Parameters of a block of which each rank has its own."""

TRIPS = 4
"""All-to-alls per layer and step: to the experts and back, forward and backward."""


class Moe(Twin):
    name = "moe"
    summary = "one expert a rank in each block; a router sends each token to its experts by all-to-all"
    source = "Fedus et al. 2021, Switch Transformer, arXiv:2101.03961; Komatsuzaki et al. 2022, arXiv:2212.05055"
    options = (
        Option(
            "experts", "all", choice("all", "site"), "different experts at all ranks, or those of a site at each site"
        ),
        Option("top_k", 1, whole(1, 64), "k: experts of a token"),
        Option("capacity", 1.0, share(0.01, 64.0), "what an expert takes, in equal shares of a rank's tokens"),
        Option("router_seed", 0, whole(0), "of the router's first weights"),
    )
    replicated = False
    asleep: ClassVar[bool] = False

    def _expert_groups(self) -> list[tuple[str, tuple[int, ...]]]:
        if self.values["experts"] == "all":
            return [("world", self.layout.everyone)]
        return site_groups(self.layout)

    @property
    def experts(self) -> int:
        """Number of different experts of a layer."""
        return self.layout.world_size if self.values["experts"] == "all" else self.layout.slices

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank puts into an all-to-all: the places of all experts, whether taken or not."""
        slots: int = math.ceil(self.values["capacity"] * self.layout.tokens * self.values["top_k"] / self.experts)
        return FLOAT32_BYTES * self.experts * slots * self.layout.width

    @property
    def expert_bytes(self) -> int:
        """Bytes of the experts that one rank has: one in each layer."""
        return FLOAT32_BYTES * sum(tensor.elements for tensor in self.layout.tensors if _is_expert(tensor.name))

    @property
    def dense_bytes(self) -> int:
        """Bytes of all other parameters, routers included."""
        routers = FLOAT32_BYTES * self.layout.layers * self.layout.width * self.experts
        return self.layout.payload_bytes - self.expert_bytes + routers

    def mistakes(self) -> Sequence[Mistake]:
        mistakes = unequal_sites(self.layout, "strategy", "because each has one expert")
        if not mistakes and self.values["top_k"] > self.experts:
            message = f"expected top_k of at most the {self.experts} experts, got {self.values['top_k']}"
            mistakes.append(Mistake("top_k", message, f"write top_k: {self.experts}"))
        return mistakes

    def operations(self, step: int) -> Sequence[Operation]:
        if not 1 <= step <= self.layout.steps:
            return ()
        operations, trips = list[Operation](), TRIPS * self.layout.layers
        for name, ranks in self._expert_groups():
            if len(ranks) > 1:
                operations += [Operation("all_to_all", ranks, self.sent_bytes, "activations", name)] * trips
        operations += self._dense()
        if self.values["experts"] == "site":
            operations += self._sum_over_sites(self.expert_bytes)
        return operations

    def _dense(self) -> list[Operation]:
        """Return the operations of the mean over all ranks, in two levels."""
        count = self.layout.slices
        slice_bytes = FLOAT32_BYTES * -(-self.dense_bytes // FLOAT32_BYTES // count)
        sites = site_groups(self.layout) if count > 1 else []
        return [
            *(Operation("reduce_scatter", ranks, slice_bytes * count, "gradients", name) for name, ranks in sites),
            *self._sum_over_sites(slice_bytes),
            *(Operation("all_gather", ranks, slice_bytes * count, "gradients", name) for name, ranks in sites),
        ]

    def _sum_over_sites(self, byte_count: float) -> list[Operation]:
        groups = slice_groups(self.layout)
        sums = [Operation("all_reduce", ranks, byte_count, "gradients", name) for name, ranks in groups]
        return sum_over_replicas(sums, self.layout)

    def equal(self, step: int) -> Sequence[Equal]:
        dense = Equal("dense", self.layout.everyone)
        if self.values["experts"] == "all":
            return (dense,)
        return (dense, *(Equal("expert", ranks) for _, ranks in slice_groups(self.layout)))


def _is_expert(name: str) -> bool:
    _, _, in_blocks = name.partition("blocks.")
    return in_blocks.partition(".")[2] in EXPERT
