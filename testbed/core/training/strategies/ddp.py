"""Twin of ``ddp``: the mean gradient of all ranks in each step, in buckets beside the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.training.published_quality import SCALING_LAW
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice, whole
from testbed.core.training.twin import Equal, Option, Twin

__all__ = ["Ddp"]


class Ddp(Twin):
    name = "ddp"
    summary = "average gradients over all ranks in every step, in buckets, beside the backward pass"
    source = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704"
    published = True
    quality = (SCALING_LAW,)
    shown = ()
    options: ClassVar[tuple[Option, ...]] = (
        Option("accumulate", 1, whole(1, 10_000), "A: steps whose gradients are added before one exchange"),
        Option("bits", 32, choice(32, 16), "of each value on the fiber; 16: bfloat16, as torch's bf16_compress_hook"),
        Option("buckets", 8, whole(1, 1000), "K: parts of the gradient, each exchanged when it is ready"),
    )

    def operations(self, step: int) -> Sequence[Operation]:
        if not self._exchanges(step):
            return ()
        # How torch cuts buckets does not matter for the bytes; one operation stands for all of them.
        byte_count = self.layout.payload_bytes * self.values["bits"] / 32
        return (
            Operation("all_reduce", self.layout.everyone, byte_count, "gradients", parts=int(self.values["buckets"])),
        )

    def busy_steps(self) -> Sequence[int]:
        return (self.cycle,)

    def equal(self, step: int) -> Sequence[Equal]:
        return (Equal("parameters", self.layout.everyone),)

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self.values["accumulate"])

    def updates(self, step: int, rank: int = 0) -> int:
        updates, added = divmod(step, int(self.values["accumulate"]))
        return updates + (step >= self.layout.steps and added > 0)

    @property
    def longest_gap(self) -> int:
        return int(self.values["accumulate"])

    def _exchanges(self, step: int) -> bool:
        return 1 <= step <= self.layout.steps and (step % self.values["accumulate"] == 0 or step == self.layout.steps)
