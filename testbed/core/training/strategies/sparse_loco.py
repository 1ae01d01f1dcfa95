"""Twin of ``sparse-loco``: every H steps, sites exchange the largest values of what they have not sent yet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from testbed.core.training.codec_bytes import CHUNK, block_runs, slice_runs, top_k_bytes
from testbed.core.training.periodic_exchange import Fragment, PeriodicExchange
from testbed.core.training.site_exchange import slice_groups
from testbed.core.training.strategy_options import EVERY, PACE, REPLICA, WEIGH, choice, share, whole
from testbed.core.training.twin import Option

__all__ = ["SparseLoco"]


class SparseLoco(PeriodicExchange):
    name = "sparse-loco"
    summary = "train alone for H steps, then exchange the largest values of the pseudo-gradient and keep the rest back"
    source = "Sarfi et al. 2025, SparseLoCo, arXiv:2508.15706"
    options = (
        EVERY,
        Option("top", 64, whole(1, CHUNK), f"values that are sent of each {CHUNK}, a block; 64: 0.23 bits a parameter"),
        Option("bits", 2, choice(2, 32), "of each value that is sent, beside its position of 12 bits"),
        Option("decay", 0.95, share(0.0, 1.0), "share of what was kept back that is added to the next exchange"),
        Option("outer.rate", 1.0, share(0.0, 10.0), "learning rate of the outer parameters; there is no momentum"),
        REPLICA,
        PACE,
        WEIGH,
    )
    gathers_codes = True

    def slice_bytes(self, fragment: Fragment, slices: int) -> Sequence[float]:
        return self._coded

    @cached_property
    def _coded(self) -> Sequence[int]:
        """Bytes of the code of each slice, which is cut in block order; padding is not sent."""
        count, runs = len(slice_groups(self.layout, self.replica)), list(block_runs(self.layout.tensors))
        size = -(-self.layout.elements // count)
        slices = [slice_runs(runs, index * size, (index + 1) * size) for index in range(count)]
        return [top_k_bytes(blocks, int(self.values["top"]), int(self.values["bits"])) for blocks in slices]
