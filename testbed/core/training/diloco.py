"""Twin of ``diloco``: sites train alone, and every H steps apply the mean of their pseudo-gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.training.layout import Layout
from testbed.core.training.operation import Operation
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, REPLICA
from testbed.core.training.twin import Equal, Option, Twin

__all__ = ["Diloco", "Outer", "inner_operations", "slice_bytes", "slice_groups"]


def slice_groups(layout: Layout, replica: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and ranks of each group that exchanges a slice between replicas."""
    if replica == "rank":
        return [("replicas", tuple(range(layout.world_size)))]
    members = layout.members.values()
    return [(f"slice:{index}", tuple(ranks[index] for ranks in members)) for index in range(layout.slices)]


def slice_bytes(layout: Layout, replica: str, byte_count: float) -> float:
    """Return what one of :func:`slice_groups` exchanges of ``byte_count``."""
    return byte_count if replica == "rank" else byte_count / layout.slices


def inner_operations(layout: Layout, replica: str) -> list[Operation]:
    """Return the operations of a step inside replicas: the mean gradient of a site's ranks."""
    if replica == "rank":
        return []
    return [
        Operation("all_reduce", ranks, layout.payload_bytes, "gradients", f"site:{name}")
        for name, ranks in layout.members.items()
        if len(ranks) > 1
    ]


class Outer(Twin):
    """Common to all whose replicas train alone for H steps and then exchange everything, waiting for it."""

    options: ClassVar[tuple[Option, ...]] = (EVERY, REPLICA)

    def operations(self, step: int) -> Sequence[Operation]:
        replica = self.values["replica"]
        steps = inner_operations(self.layout, replica) if 1 <= step <= self.layout.steps else []
        return (*steps, *(self.exchange() if self.exchanges(step) else ()))

    def exchange(self) -> Sequence[Operation]:
        """Return the operations of one exchange, those inside the sites included."""
        replica, layout = self.values["replica"], self.layout
        each = slice_bytes(layout, replica, layout.payload_bytes)
        groups = slice_groups(layout, replica)
        across = [Operation("all_reduce", ranks, each, "pseudo-gradients", name) for name, ranks in groups]
        return (*across, *self.spread())

    def spread(self) -> Sequence[Operation]:
        """Return the operations that bring all slices to all ranks of a site."""
        if self.values["replica"] == "rank":
            return ()
        return [
            Operation("all_gather", ranks, self.layout.payload_bytes, "parameters", f"site:{name}")
            for name, ranks in self.layout.members.items()
            if len(ranks) > 1
        ]

    def exchanges(self, step: int) -> bool:
        """Whether an exchange follows ``step``; one follows the last step in any case."""
        return 1 <= step <= self.layout.steps and (step % self.values["every"] == 0 or step == self.layout.steps)

    def equal(self, step: int) -> Sequence[Equal]:
        if self.exchanges(step):
            everyone = tuple(range(self.layout.world_size))
            return (Equal("parameters", everyone), *(Equal("outer", ranks) for ranks in self._slices()))
        inside = () if self.values["replica"] == "rank" else self.layout.members.values()
        return tuple(Equal("parameters", ranks) for ranks in inside)

    def _slices(self) -> list[tuple[int, ...]]:
        return [ranks for _, ranks in slice_groups(self.layout, self.values["replica"])]

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self.values["every"])

    def outer_updates(self, step: int) -> int:
        every = int(self.values["every"])
        return -(-step // every) if step >= self.layout.steps else step // every

    @property
    def delays(self) -> float:
        replicas = self.layout.world_size if self.values["replica"] == "rank" else len(self.layout.site_names)
        return 2.0 * (replicas - 1)

    @property
    def longest_gap(self) -> int:
        return int(self.values["every"])


class Diloco(Outer):
    name = "diloco"
    summary = "train alone for H steps, then apply the mean pseudo-gradient by Nesterov momentum; sites wait for it"
    source = "Douillard et al. 2023, arXiv:2311.08105"
    options = (EVERY, OUTER_RATE, OUTER_MOMENTUM, REPLICA)
