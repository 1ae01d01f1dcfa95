"""The impairments of one direction of a fiber, with the same names and meaning on every emulator.

A packet passes random loss, corruption and duplication, then the queue, serialization at the rate, and the delay with
its jitter. Packets keep their order unless ``jitter_reorders`` or ``reorder`` is set. A "packet" is an MTU segment: a
super-packet of segmentation offload is never lost, corrupted or duplicated as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = [
    "DISTRIBUTIONS",
    "FRAME_HEADER_BYTES",
    "MOST_DELAY_S",
    "MOST_RATE_BPS",
    "WIRE_OVERHEAD_BYTES",
    "EmulatedDirection",
    "GilbertElliott",
    "Impairment",
]

WIRE_OVERHEAD_BYTES: Final = 24
"""Ethernet's preamble and start of frame (8), frame check sequence (4) and gap (12): the overhead of a frame on the
wire (IEEE 802.3)."""

FRAME_HEADER_BYTES: Final = 14
"""Addresses and type of an Ethernet frame, which the MTU does not include."""

MOST_DELAY_S: Final = 60.0
LEAST_RATE_BPS: Final = 1e3
MOST_RATE_BPS: Final = 1e13
MOST_OVERHEAD_BYTES: Final = 256
LEAST_LARGEST_BYTES: Final = 68
"""The packet size that every IPv4 link must carry (RFC 791)."""
MOST_LARGEST_BYTES: Final = 65_535

DISTRIBUTIONS: Final = {
    "uniform": 1.0,
    "normal": 4.0,
    "pareto": 1 / math.sqrt(3),
    "paretonormal": 0.25 * 4 + 0.75 / math.sqrt(3),
}
"""How far below its mean each jitter distribution reaches, in units of the jitter.

``uniform``: uniform over the delay plus or minus the jitter. ``normal``: the jitter is the standard deviation, cut off
at 4. ``pareto``: Pareto with shape 3, shifted and scaled to mean 0 and standard deviation 1, cut off at 4.
``paretonormal``: 0.25 x normal + 0.75 x an independent pareto value. These are the shapes of iproute2's tables for
netem (netem/normal.c, pareto.c, paretonormal.c)."""


@dataclass(frozen=True)
class GilbertElliott:
    """Burst loss: a Markov chain of a good and a bad state, with one transition per packet.

    Attributes:
        p: transition probability from good to bad.
        r: transition probability from bad to good.
        h: probability that a packet passes in the bad state.
        k: probability that a packet passes in the good state.

    The current state decides on a packet before the transition. Source: Gilbert, BSTJ 39 (1960); Elliott, BSTJ 42
    (1963); the same order as in ``loss_gilb_ell`` of net/sched/sch_netem.c.
    """

    p: float
    r: float
    h: float = 0.0
    k: float = 1.0

    @classmethod
    def of_means(cls, loss: float, burst: float) -> GilbertElliott:
        """Return the chain with mean ``loss`` (0..1, both excluded) in runs of ``burst`` packets on average.

        All packets are lost in the bad state, none in the good one. ``burst`` is at least 1 and at least
        loss / (1 - loss).
        """
        r = 1.0 / burst
        return cls(loss * r / (1.0 - loss), r)

    @property
    def bad(self) -> float:
        """Stationary probability of the bad state."""
        return self.p / (self.p + self.r) if self.p else 0.0

    @property
    def mean_loss(self) -> float:
        return self.bad * (1.0 - self.h) + (1.0 - self.bad) * (1.0 - self.k)

    @property
    def mean_burst(self) -> float:
        """Mean stay in the bad state, in packets; the mean run of lost packets where h = 0 and k = 1."""
        return 1.0 / self.r

    @property
    def correlation(self) -> float:
        """Correlation of the states of consecutive packets: 1 - p - r.

        For h = 0, k = 1 and large n, the number of lost among n packets has the variance
        n P (1 - P) (1 + correlation) / (1 - correlation).
        """
        return 1.0 - self.p - self.r


@dataclass(frozen=True)
class Impairment:
    """The impairment of one direction of one link. Any values are accepted; :meth:`findings` validates them.

    Attributes:
        delay_s: one-way propagation plus optics, in seconds; with jitter the mean.
        rate_bps: bits per second on the wire; 0 means unlimited.
        queue_bytes: tail-drop limit on the wire bytes queued for transmission at ``rate_bps``, sized as
            rate x delay + buffer; bytes in flight do not count. 0 means no limit but the emulator's memory cap.
        overhead_bytes: overhead per packet beyond its Ethernet frame, at the rate and in the queue.
        jitter_s: spread of the delay in seconds, as its distribution defines it (:data:`DISTRIBUTIONS`).
        jitter_distribution: one of :data:`DISTRIBUTIONS`.
        jitter_correlation: 0..1; weight of the previous packet's random value against a new one, as in netem
            (``get_crandom``), which narrows the distribution.
        jitter_reorders: if False, a packet that would overtake its predecessor leaves together with it.
        loss: mean probability that a packet is lost, 0..1; independently, or in bursts.
        burst: mean length of a run of lost packets; 0 means independent losses.
        p, r, h, k: burst loss given by its chain (:class:`GilbertElliott`) if p > 0; ``loss`` and ``burst`` are 0 then.
        corrupt: probability that bits of a packet are flipped. Ethernet's frame check detects it: the frame is lost.
        corrupt_survives: the frame check misses the flipped bit: the packet is delivered with one wrong bit and
            checksums computed before, so that TCP and UDP detect it.
        duplicate: probability that a packet that is not lost is delivered twice.
        reorder: probability that a packet is delayed by ``reorder_by_s`` more, so that later ones overtake it. No
            packet is ever sent early: no fiber is faster than light.
        reorder_by_s: seconds beyond the delay.
        largest_bytes: larger IP packets are dropped without an ICMP error: an MTU black hole (RFC 2923, 2.1).
            0: all sizes pass.
    """

    delay_s: float = 0.0
    rate_bps: float = 0.0
    queue_bytes: int = 0
    loss: float = 0.0
    overhead_bytes: int = WIRE_OVERHEAD_BYTES
    jitter_s: float = 0.0
    jitter_distribution: str = "normal"
    jitter_correlation: float = 0.0
    jitter_reorders: bool = False
    burst: float = 0.0
    p: float = 0.0
    r: float = 0.0
    h: float = 0.0
    k: float = 1.0
    corrupt: float = 0.0
    corrupt_survives: bool = False
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_by_s: float = 0.0
    largest_bytes: int = 0

    @property
    def chain(self) -> GilbertElliott | None:
        """The chain of burst loss; None for independent losses, or none."""
        if self.p > 0:
            return GilbertElliott(self.p, self.r, self.h, self.k)
        return GilbertElliott.of_means(self.loss, self.burst) if self.burst > 0 and 0 < self.loss < 1 else None

    @property
    def mean_loss(self) -> float:
        """Share of packets that do not arrive, including corrupted ones unless ``corrupt_survives``."""
        chain = self.chain
        passing = 1.0 - (chain.mean_loss if chain else self.loss)
        return 1.0 - passing * (1.0 if self.corrupt_survives else 1.0 - self.corrupt)

    def least_queue_bytes(self, mtu: int) -> int:
        """Return the minimum size of the queue: one full packet of ``mtu`` bytes with its overhead.

        A smaller queue would drop every full packet, even on an idle line, in fiberd and in the kernel's tbf.
        """
        return mtu + FRAME_HEADER_BYTES + self.overhead_bytes

    @property
    def touches_packets(self) -> bool:
        """Whether an impairment applies per packet, so that a sender's super-packets must be segmented first."""
        chances = (self.loss, self.p, self.corrupt, self.duplicate, self.reorder, self.jitter_s)
        return any(chances) or self.largest_bytes > 0

    @property
    def keeps_order(self) -> bool:
        return not self.jitter_reorders and not self.reorder

    def findings(self) -> Iterator[str]:
        """Yield each mistake as a sentence that begins with the key as users write it."""
        yield from self._out_of_range()
        yield from self._contradictions()

    def _out_of_range(self) -> Iterator[str]:
        if not 0 <= self.delay_s <= MOST_DELAY_S:
            yield f"delay: {self.delay_s:g} s is out of range; expected 0 to {MOST_DELAY_S:g} s"
        if self.rate_bps != 0 and not LEAST_RATE_BPS <= self.rate_bps <= MOST_RATE_BPS:
            yield f"rate: {self.rate_bps:g} b/s is out of range; expected 0 (unlimited), or 1 kb/s to 10 Tb/s"
        if not 0 <= self.queue_bytes < 2**63:
            yield f"queue: {self.queue_bytes} B is out of range; expected 0 to 2^63 - 1 B"
        if self.largest_bytes and not LEAST_LARGEST_BYTES <= self.largest_bytes <= MOST_LARGEST_BYTES:
            bounds = f"{LEAST_LARGEST_BYTES} B to {MOST_LARGEST_BYTES} B"
            yield f"largest: {self.largest_bytes} B is out of range; expected 0 (all sizes pass), or {bounds}"
        if not 0 <= self.overhead_bytes <= MOST_OVERHEAD_BYTES:
            yield f"overhead: {self.overhead_bytes} B is out of range; expected 0 to {MOST_OVERHEAD_BYTES} B per packet"
        for name in ("loss", "p", "r", "h", "k", "corrupt", "duplicate", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                yield f"{name}: {value:g} is out of range; expected 0 to 1"
        if not 0 <= self.jitter_correlation < 1:
            yield f"correlation: {self.jitter_correlation:g} is out of range; expected 0 to below 1"
        if self.jitter_distribution not in DISTRIBUTIONS:
            available = ", ".join(DISTRIBUTIONS)
            yield f"distribution: unknown distribution {self.jitter_distribution!r} (available: {available})"
        if not 0 <= self.jitter_s <= MOST_DELAY_S:
            yield f"jitter: {self.jitter_s:g} s is out of range; expected 0 to {MOST_DELAY_S:g} s"
        if not 0 <= self.reorder_by_s <= MOST_DELAY_S:
            yield f"reorder_by: {self.reorder_by_s:g} s is out of range; expected 0 to {MOST_DELAY_S:g} s"
        if not (self.burst == 0 or 1 <= self.burst <= 1e9):
            yield f"burst: {self.burst:g} packets are out of range; expected 1 to 1e9"

    def _contradictions(self) -> Iterator[str]:
        below = DISTRIBUTIONS.get(self.jitter_distribution, 0.0) * self.jitter_s
        if 0 < self.delay_s < below * (1 - 1e-9) or (self.jitter_s > 0 and self.delay_s == 0):
            yield (
                f"jitter: {self.jitter_s * 1e6:g} us ({self.jitter_distribution}) reaches {below * 1e6:g} us below"
                f" the mean delay of {self.delay_s * 1e6:g} us, so packets would arrive before they were sent;"
                " increase delay, or reduce jitter"
            )
        if self.jitter_correlation and not self.jitter_s:
            yield "correlation: needs jitter; add jitter"
        if self.jitter_reorders and not self.jitter_s:
            yield "jitter_reorders: needs jitter; add jitter"
        if self.burst and not 0 < self.loss < 1:
            yield f"burst: needs a loss between 0 and 1, got {self.loss:g}; add loss"
        elif self.burst >= 1 and self.burst < self.loss / (1 - self.loss) * (1 - 1e-9):
            yield (
                f"burst: a loss of {self.loss:g} has runs of at least {self.loss / (1 - self.loss):.4g} packets,"
                f" got {self.burst:g}; increase burst, or reduce loss"
            )
        if self.p > 0:
            if self.loss or self.burst:
                yield "p: a chain defines loss and burst itself; write either p and r, or loss and burst"
            if self.r <= 0:
                yield "r: with p, the chain needs a return to the good state; write r above 0"
        elif self.r or self.h or self.k != 1:
            yield "p: r, h and k belong to a chain with p above 0; add p"
        if self.corrupt_survives and not self.corrupt:
            yield "corrupt_survives: needs corruption; add corrupt"
        if bool(self.reorder) != bool(self.reorder_by_s):
            yield "reorder: needs both reorder (the share of packets) and reorder_by (how late); add the missing one"
        if self.reorder and self.jitter_s and not self.jitter_reorders:
            yield "reorder: jitter would restore the order; add jitter_reorders=true"
        if self.reorder and self.jitter_correlation:
            yield "reorder: cannot be combined with correlation; remove one of them"


@dataclass(frozen=True)
class EmulatedDirection:
    """One direction of a link for the emulator: in at ``ingress``, out at ``egress``, both in the plant.

    ``name`` is ``link:site``, with the site that the direction leads to. ``receiver`` is the interface of that site's
    gateway, at the other end of the cable of ``egress``; empty: it has the link's name.
    """

    name: str
    ingress: str
    egress: str
    impairment: Impairment
    receiver: str = ""

    @property
    def link(self) -> str:
        return self.name.partition(":")[0]

    @property
    def toward(self) -> str:
        return self.name.partition(":")[2]
