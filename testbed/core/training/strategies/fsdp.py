"""Twin of ``fsdp``: each decoder block gathered twice a step and its gradient reduce-scattered, over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from testbed.core.training.layout import FLOAT32_BYTES, Layout
from testbed.core.training.published_quality import SCALING_LAW
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

__all__ = ["Fsdp", "groups_of_tensors", "padded_bytes"]


def groups_of_tensors(layout: Layout) -> list[int | None]:
    """Return what is gathered as one, in the order of the forward pass: None for all that lies outside the blocks."""
    layers = {tensor.layer for tensor in layout.tensors}
    return [*([None] if None in layers else []), *sorted(layer for layer in layers if layer is not None)]


def padded_bytes(layout: Layout, ranks: int) -> Mapping[int | None, int]:
    """Return the bytes of the tensors of each layer, the first dimension of each padded to a multiple of ``ranks``."""
    sizes = Counter[int | None]()
    for tensor in layout.tensors:
        rows = tensor.rows or tensor.elements
        sizes[tensor.layer] += FLOAT32_BYTES * -(-rows // ranks) * ranks * (tensor.elements // rows)
    return sizes


class Fsdp(Twin):
    name = "fsdp"
    summary = "shard parameters, gradients and moments over all ranks; gather each block when it is needed"
    source = "Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277; torch fully_shard"
    replicated = False
    quality = (SCALING_LAW,)

    def operations(self, step: int) -> Sequence[Operation]:
        if not 1 <= step <= self.layout.steps:
            return ()
        return [operation for name, ranks in self._shard_groups() for operation in self._of_group(name, ranks)]

    def _shard_groups(self) -> Sequence[tuple[str, tuple[int, ...]]]:
        """Return name and ranks of each group that shares one model."""
        return [("world", self.layout.everyone)]

    def _of_group(self, name: str, ranks: tuple[int, ...]) -> Iterator[Operation]:
        if len(ranks) == 1:
            return
        groups, sizes = groups_of_tensors(self.layout), padded_bytes(self.layout, len(ranks))
        blocks = [layer for layer in groups if layer is not None]
        for layer in (*groups, *reversed(blocks)):  # what is outside the blocks is not freed after its forward pass
            yield Operation("all_gather", ranks, sizes[layer], "parameters", name, layer)
        for layer in reversed(groups):
            yield Operation("reduce_scatter", ranks, sizes[layer], "gradients", name, layer)

    def equal(self, step: int) -> Sequence[Equal]:
        return ()  # no two ranks hold the same; sums and gathered parameters are checked instead
