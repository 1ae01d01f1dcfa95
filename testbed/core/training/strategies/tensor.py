"""Twin of ``tensor``: matrices of each block split over ranks; activations are summed twice a layer and pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import in_sites, site_groups, slice_groups, sum_over_replicas, unequal_sites
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import flag
from testbed.core.training.twin import Equal, Mistake, Option, Twin
from testbed.core.units import format_size

__all__ = ["TensorParallel"]

SPLIT = ("attention.inward.weight", "attention.inward.bias", "attention.outward.weight", "inward.weight", "inward.bias",
         "outward.weight")  # fmt: skip
"""Parameters of a block that are split; the biases of what is summed are whole."""

SUMS = 4
"""Sums of activations per layer and step: attention and perceptron, forward and backward."""

DELAYS = 4
"""One-way delays that follow one another in a sum, for each hop of gloo's ring."""

TOKEN_BYTES = 4
DELAY_100_KM_S = 0.5e-3


class TensorParallel(Twin):
    name = "tensor"
    summary = "split the matrices of each block over the ranks of a site; sites are replicas"
    source = "Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053; torch parallelize_module"
    options = (
        Option("across", False, flag, "split over the sites instead: every sum of activations crosses the fiber"),
    )
    replicated = False
    asleep: ClassVar[bool] = False

    def _split_groups(self) -> list[tuple[str, tuple[int, ...]]]:
        return slice_groups(self.layout) if self.values["across"] else site_groups(self.layout)

    def _peer_groups(self) -> list[tuple[str, tuple[int, ...]]]:
        return site_groups(self.layout) if self.values["across"] else slice_groups(self.layout)

    @property
    def _size(self) -> int:
        """Number of ranks that split a matrix."""
        return len(self.layout.site_names) if self.values["across"] else self.layout.slices

    def _bytes(self, split: bool) -> int:
        return FLOAT32_BYTES * sum(tensor.elements for tensor in self.layout.tensors if _is_split(tensor.name) == split)

    def mistakes(self) -> Sequence[Mistake]:
        layout = self.layout
        mistakes = unequal_sites(layout, "strategy", "because each shard is averaged with its like")
        if mistakes:
            return mistakes
        for divided, count in (("heads", layout.heads), ("inner width", 4 * layout.width)):
            if count % self._size:
                fix = f"write a model whose {divided} {self._size} divides, or place another number of ranks"
                message = (
                    f"expected {divided} that are a multiple of the {self._size} ranks that split them, got {count}"
                )
                mistakes.append(Mistake("strategy", message, fix))
        if self.values["across"] and len(layout.site_names) > 1:
            mistakes.append(self._price())
        return mistakes

    def _price(self) -> Mistake:
        """Return the warning of matrices split across a fiber: what that costs in bytes and time."""
        layout, sites = self.layout, len(self.layout.site_names)
        delays = DELAYS * (sites - 1) * SUMS * layout.layers
        waits_ms = delays * DELAY_100_KM_S * 1e3
        once = 2 * (sites - 1) / sites * layout.payload_bytes
        # A ring over the sites: each hop carries 2 (S - 1) / S of an all_reduce, half of it of an all_gather.
        share = {"all_reduce": 2 * (sites - 1) / sites, "all_gather": (sites - 1) / sites}
        crossing = [operation for operation in self.operations(1) if operation.group.startswith("slice:")]
        most = sum(share[operation.kind] * operation.byte_count for operation in crossing)
        message = (
            f"tensor across a fiber: {format_size(most, 3)} a step and direction, {SUMS * layout.layers} sums of "
            f"activations one after the other, {delays:g} one-way delays in each step: {waits_ms:g} ms for each "
            "100 km of fiber"
        )
        fix = f"omit across: then {format_size(once, 3)} cross, once a step"
        return Mistake("across", message, fix, warning=True)

    def operations(self, step: int) -> Sequence[Operation]:
        if not 1 <= step <= self.layout.steps:
            return ()
        layout, size, across, operations = self.layout, self._size, self.values["across"], list[Operation]()
        if size > 1:
            tokens = 2 * TOKEN_BYTES * layout.tokens * size
            activations = FLOAT32_BYTES * layout.tokens * size * layout.width
            for name, ranks in self._split_groups():
                operations.append(Operation("all_gather", ranks, tokens, "tokens", name))
                operations += [Operation("all_reduce", ranks, activations, "activations", name)] * (
                    SUMS * layout.layers
                )
        split, whole = self._bytes(True) / size, self._bytes(False)
        slice_bytes = FLOAT32_BYTES * -(-whole // FLOAT32_BYTES // size)
        peers = self._peer_groups()
        if len(peers[0][1]) > 1:
            mean_bytes = split + (whole if across else slice_bytes)
            means = [Operation("all_reduce", ranks, mean_bytes, "gradients", name) for name, ranks in peers]
            operations += means if across else sum_over_replicas(means, layout)
            if size > 1 and not across:
                operations += in_sites(layout, "all_gather", slice_bytes * size, "gradients")
        return operations

    def equal(self, step: int) -> Sequence[Equal]:
        return (Equal("whole", self.layout.everyone), *(Equal("shard", ranks) for _, ranks in self._peer_groups()))


def _is_split(name: str) -> bool:
    _, _, in_blocks = name.partition("blocks.")
    return in_blocks.partition(".")[2] in SPLIT
