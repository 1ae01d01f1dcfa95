"""Twin of ``streaming-diloco``: fragments of the model are exchanged one after the other, beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.codec_bytes import dense_bytes
from testbed.core.training.periodic_exchange import Fragment, PeriodicExchange, too_many_fragments
from testbed.core.training.published_quality import DILOCO, PublishedQuality
from testbed.core.training.strategy_options import (
    AGGREGATE_AT,
    EVERY,
    OUTER_MOMENTUM,
    OUTER_RATE,
    PACE,
    REPLICA,
    WEIGH,
    choice,
    share,
    whole,
)
from testbed.core.training.twin import Mistake, Option

__all__ = ["StreamingDiloco"]


class StreamingDiloco(PeriodicExchange):
    name = "streaming-diloco"
    summary = "as diloco, one fragment of the layers at a time, beside tau further steps; optionally with few bits"
    source = "Douillard et al. 2025, Streaming DiLoCo, arXiv:2501.18512"
    published = True
    quality = (
        *DILOCO,
        PublishedQuality("an overlap of more than 5 steps gains little", "arXiv:2501.18512", "measured"),
    )
    shown = (("every", 100), ("fragments", 8), ("overlap", 5))  # our choice
    options = (
        EVERY,
        Option("fragments", 4, whole(1, 10_000), "P: parts of the model, each with every P-th layer"),
        Option("overlap", 1, whole(0), "tau: steps beside which a fragment is exchanged; 0: the step waits for it"),
        Option("alpha", 0.5, share(0.0, 1.0), "share of the site's own parameters in the merge with the outer ones"),
        Option("bits", 32, choice(32, 16, 8, 4), "of each value on the fiber: float32, bfloat16, int8 or E3M0"),
        Option("rounding", "nearest", choice("nearest", "stochastic"), "of 8 and 4 bits"),
        OUTER_RATE,
        OUTER_MOMENTUM,
        REPLICA,
        AGGREGATE_AT,
        PACE,
        WEIGH,
    )

    def mistakes(self) -> Sequence[Mistake]:
        every, overlap, bits = self.cycle, self.overlap, int(self.values["bits"])
        mistakes = [*super().mistakes(), *too_many_fragments(self.layout, len(self.fragments))]
        if overlap >= every:
            fix = f"write at most {every - 1}, or a larger every"
            mistakes.append(Mistake("overlap", f"expected fewer steps than every, {every}, got {overlap}", fix))
        if self.aggregate_at and self.gathers_codes:
            message = f"a site adds float32 values, and codes of {bits} bits are gathered"
            mistakes.append(Mistake("aggregate_at", message, "remove it, or write bits: 32"))
        if self.values["rounding"] == "stochastic" and bits > 8:
            message = f"expected nearest for {bits} bits, got stochastic"
            mistakes.append(Mistake("rounding", message, "write bits: 8 or 4, or rounding: nearest"))
        return mistakes

    @property
    def gathers_codes(self) -> bool:
        return bool(self.values["bits"] != 32)

    def slice_bytes(self, fragment: Fragment, slices: int) -> Sequence[float]:
        # Slices are padded to the same size.
        return [dense_bytes(-(-fragment.elements // slices), int(self.values["bits"]))] * slices

    def agrees(self, step: int) -> bool:
        """Only at the ends: between them a site keeps a share of its own parameters."""
        return step == 0 or step >= self.layout.steps
