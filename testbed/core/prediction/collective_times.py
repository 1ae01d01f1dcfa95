"""Collectives across sites: one-way delays in sequence, and bits on the fiber per bit of payload. Pure.

=================  ===============================  ===================  ======================================
pattern            delays c                         wire factor w, each  source
                                                    direction of the cut
=================  ===============================  ===================  ======================================
exchange           1                                1, two sites         bound: docs/bounds.md
flat ring          4 (R - 1)                        2 (R - 1) / R        Patarasuk and Yuan, 2009; c measured
                                                                         for gloo: 12 among 4 ranks
two-level          1 for two sites, else 2 (S - 1)  2 (S - 1) / S        arXiv:2304.11277
gather of deltas   1                                S - 1, into a site   arXiv:2508.15706; ``bits`` has the
                                                                         index of a value, too
=================  ===============================  ===================  ======================================

A pattern is what the algorithm allows; a library that was measured has its own c and w (``testbed validate``).
Two-level leaves out the fabrics inside the sites, whose reduce-scatter and all-gather are compute's neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.prediction.inputs import Inputs

__all__ = ["Pattern", "exchange_s", "flat_ring", "gather", "two_level"]


@dataclass(frozen=True)
class Pattern:
    """A way of exchanging: c one-way delays in sequence, w bits on the fiber per bit of payload and direction."""

    delays: float
    wire_factor: float

    def measured(self, inputs: Inputs) -> Pattern:
        """Return this pattern with what was measured, or declared, in place of what the algorithm allows."""
        return Pattern(
            self.delays if inputs.delays is None else inputs.delays,
            self.wire_factor if inputs.wire_factor is None else inputs.wire_factor,
        )


def flat_ring(ranks: int) -> Pattern:
    """Return an all-reduce of all ranks in one ring: 2 (R - 1) hops of two one-way delays each, as gloo was measured.

    >>> flat_ring(4)
    Pattern(delays=12, wire_factor=1.5)
    """
    return Pattern(4 * (ranks - 1), 2 * (ranks - 1) / ranks)


def two_level(sites: int) -> Pattern:
    """Return an all-reduce of one shard per rank between sites: an exchange of two, a ring of more.

    >>> two_level(2), two_level(1)
    (Pattern(delays=1, wire_factor=1.0), Pattern(delays=0, wire_factor=0.0))
    """
    hops = 2 * (sites - 1)
    return Pattern(1 if sites == 2 else hops, hops / sites)


def gather(sites: int) -> Pattern:
    """Return an all-gather of what each site has to tell: S - 1 parts come into each site, in one delay."""
    return Pattern(1 if sites > 1 else 0, float(sites - 1))


def exchange_s(
    payload_bits: float, pattern: Pattern, rate_bps: float, delay_s: float, operation_s: float = 0.0
) -> float:
    """Return the seconds of one exchange that nothing overlaps: o + c d + w S / B.

    >>> exchange_s(8e6, Pattern(12, 1.5), 753e6, 200e-6)  # a megabyte over metro-40km, by gloo
    0.01833...
    """
    return operation_s + pattern.delays * delay_s + pattern.wire_factor * payload_bits / rate_bps
