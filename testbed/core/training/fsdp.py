"""Twin of ``fsdp``: each decoder block gathered twice a step and its gradient reduce-scattered, over all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed.core.training.layout import FLOAT32_BYTES, Layout
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

__all__ = ["Fsdp", "groups_of_tensors", "padded_bytes"]


def groups_of_tensors(layout: Layout) -> list[int | None]:
    """Return what is gathered as one, in the order of the forward pass: None for all that lies outside the blocks."""
    outside = any(it.layer is None for it in layout.tensors)
    return [*([None] if outside else []), *sorted({it.layer for it in layout.tensors if it.layer is not None})]


def padded_bytes(layout: Layout, ranks: int) -> dict[int | None, int]:
    """Return the bytes of the tensors of each layer, the first dimension of each padded to a multiple of ``ranks``."""
    found: dict[int | None, int] = {}
    for it in layout.tensors:
        rows = it.rows or it.elements
        found[it.layer] = found.get(it.layer, 0) + FLOAT32_BYTES * -(-rows // ranks) * ranks * (it.elements // rows)
    return found


class Fsdp(Twin):
    name = "fsdp"
    summary = "shard parameters, gradients and moments over all ranks; gather each block when it is needed"
    source = "Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277; torch fully_shard"
    replicated = False

    def operations(self, step: int) -> Sequence[Operation]:
        if not 1 <= step <= self.layout.steps:
            return ()
        return [it for name, ranks in self._shard_groups() for it in self._of_group(name, ranks)]

    def _shard_groups(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Return name and ranks of each group that shares one model."""
        return [("world", tuple(range(self.layout.world_size)))]

    def _of_group(self, name: str, ranks: tuple[int, ...]) -> Iterator[Operation]:
        if len(ranks) == 1:
            return
        groups, sizes = groups_of_tensors(self.layout), padded_bytes(self.layout, len(ranks))
        blocks = [it for it in groups if it is not None]
        for it in (*groups, *reversed(blocks)):  # what is outside the blocks is not freed after its forward pass
            yield Operation("all_gather", ranks, sizes[it], "parameters", name, it)
        for it in reversed(groups):
            yield Operation("reduce_scatter", ranks, sizes[it], "gradients", name, it)

    def equal(self, step: int) -> Sequence[Equal]:
        return ()  # no two ranks hold the same; sums and gathered parameters are checked instead
