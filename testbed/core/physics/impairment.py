"""What a fiber does to packets in one direction; the same names and meaning on every emulator.

The path of a packet: chance (loss, corruption, duplication), the queue, its time at the rate, then the delay with its
jitter. Packets keep their order unless ``jitter_reorders`` or ``reorder`` asks otherwise. A "packet" below is an MTU
segment: a super-packet of segmentation offload is never lost, flipped or doubled as one.
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
    "Direction",
    "GilbertElliott",
    "Impairment",
]

WIRE_OVERHEAD_BYTES: Final = 24
"""Preamble and start of frame (8), frame check sequence (4) and gap (12) of Ethernet (IEEE 802.3): what a frame costs
on the wire beyond itself."""

FRAME_HEADER_BYTES: Final = 14
"""Addresses and type of an Ethernet frame: what it has beyond the packet of at most an MTU."""

MOST_DELAY_S: Final = 60.0
LEAST_RATE_BPS: Final = 1e3
MOST_RATE_BPS: Final = 1e13
MOST_OVERHEAD_BYTES: Final = 256
LEAST_LARGEST_BYTES: Final = 68
"""What every IPv4 link carries (RFC 791); smaller than that nothing at all would pass."""
MOST_LARGEST_BYTES: Final = 65_535

DISTRIBUTIONS: Final = {
    "uniform": 1.0,
    "normal": 4.0,
    "pareto": 1 / math.sqrt(3),
    "paretonormal": 0.25 * 4 + 0.75 / math.sqrt(3),
}
"""How far below its mean each distribution of jitter reaches, in units of the jitter.

``uniform``: evenly over the delay plus or minus the jitter. ``normal``: the jitter is the standard deviation, cut off
at 4 of them. ``pareto``: Pareto's with shape 3, moved and scaled to mean 0 and standard deviation 1, cut off at 4.
``paretonormal``: a quarter of a normal plus three quarters of an independent pareto value. These are the shapes of
iproute2's tables for netem (netem/normal.c, pareto.c, paretonormal.c)."""


@dataclass(frozen=True)
class GilbertElliott:
    """Loss in bursts: a Markov chain of a good and a bad state, one step a packet.

    Attributes:
        p: probability to go from good to bad.
        r: probability to go from bad to good.
        h: probability that a packet passes in the bad state.
        k: probability that a packet passes in the good state.

    A packet is judged by the state that it finds; then the state may change. Source: Gilbert, BSTJ 39 (1960); Elliott,
    BSTJ 42 (1963); the same order as in ``loss_gilb_ell`` of net/sched/sch_netem.c.
    """

    p: float
    r: float
    h: float = 0.0
    k: float = 1.0

    @classmethod
    def of_means(cls, loss: float, burst: float) -> GilbertElliott:
        """Everything is lost in the bad state, nothing in the good one: mean ``loss`` (0..1, both excluded) in runs of
        ``burst`` packets on average (at least 1, and at least loss / (1 - loss))."""
        r = 1.0 / burst
        return cls(loss * r / (1.0 - loss), r)

    @property
    def bad(self) -> float:
        """Share of packets that find the bad state."""
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
        """Of the states of neighbouring packets: 1 - p - r. The number of lost among n packets has the variance
        n P (1 - P) (1 + correlation) / (1 - correlation) where h = 0 and k = 1, for large n."""
        return 1.0 - self.p - self.r


@dataclass(frozen=True)
class Impairment:
    """One direction of one link. Made of any values; :meth:`findings` says what is wrong with them.

    Attributes:
        delay_s: one way, propagation plus optics, in seconds; the mean where there is jitter.
        rate_bps: bits per second on the wire; 0 means unlimited.
        queue_bytes: tail-drop limit on the wire bytes that wait for their turn at ``rate_bps``, sized as
            rate x delay + buffer; what is in flight does not count. 0 means no limit but the emulator's memory cap.
        overhead_bytes: what each packet costs at the rate and in the queue beyond its Ethernet frame.
        jitter_s: spread of the delay in seconds, in the sense of its distribution (:data:`DISTRIBUTIONS`).
        jitter_distribution: one of :data:`DISTRIBUTIONS`.
        jitter_correlation: 0..1; each packet's chance is this share of the last one's plus the rest of a fresh one, as
            netem does it (``get_crandom``), which narrows the distribution.
        jitter_reorders: False: a packet that would overtake the one before it leaves together with it.
        loss: mean probability that a packet is lost, 0..1; each by itself, or in bursts.
        burst: mean length of a run of lost packets; 0 means that each is lost by itself.
        p, r, h, k: loss in bursts said by its chain instead (:class:`GilbertElliott`), where p > 0; ``loss`` and
            ``burst`` are 0 then.
        corrupt: probability that bits of a packet are flipped. Ethernet's check catches them: the frame is lost.
        corrupt_survives: the flipped bit gets past the check: the packet is delivered with one bit wrong, its checksums
            completed before, so that TCP and UDP see it.
        duplicate: probability that a packet that is not lost is delivered twice.
        reorder: probability that a packet is held back by ``reorder_by_s``, so that later ones overtake it. Nothing is
            ever sent early: no fiber is faster than light.
        reorder_by_s: seconds beyond the delay.
        largest_bytes: IP packets of more bytes than that vanish, and nobody is told: an MTU black hole (RFC 2923, 2.1).
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
        """The chain of burst loss; None where packets are lost each by itself, or not at all."""
        if self.p > 0:
            return GilbertElliott(self.p, self.r, self.h, self.k)
        return GilbertElliott.of_means(self.loss, self.burst) if self.burst > 0 and 0 < self.loss < 1 else None

    @property
    def mean_loss(self) -> float:
        """Share of packets that do not arrive, corrupted ones included unless those survive."""
        chain = self.chain
        passing = 1.0 - (chain.mean_loss if chain else self.loss)
        return 1.0 - passing * (1.0 if self.corrupt_survives else 1.0 - self.corrupt)

    def least_queue_bytes(self, mtu: int) -> int:
        """What a queue must hold at least: one full packet of ``mtu`` bytes with its overhead. None of that size would
        ever pass a smaller one, however idle the line is, on fiberd as in the kernel's tbf."""
        return mtu + FRAME_HEADER_BYTES + self.overhead_bytes

    @property
    def touches_packets(self) -> bool:
        """Whether something has a say over single packets, so that a sender's super-packets must be segmented first."""
        chances = (self.loss, self.p, self.corrupt, self.duplicate, self.reorder, self.jitter_s)
        return any(chances) or self.largest_bytes > 0

    @property
    def keeps_order(self) -> bool:
        return not self.jitter_reorders and not self.reorder

    def findings(self) -> Iterator[str]:
        """What cannot be, each in a sentence that begins with the name of the value as users write it."""
        yield from self._out_of_range()
        yield from self._contradictions()

    def _out_of_range(self) -> Iterator[str]:
        if not 0 <= self.delay_s <= MOST_DELAY_S:
            yield f"delay: {self.delay_s:g} s is not between 0 and {MOST_DELAY_S:g} s"
        if self.rate_bps != 0 and not LEAST_RATE_BPS <= self.rate_bps <= MOST_RATE_BPS:
            yield f"rate: {self.rate_bps:g} b/s is neither 0 (unlimited) nor between 1 kb/s and 10 Tb/s"
        if not 0 <= self.queue_bytes < 2**63:
            yield f"queue: {self.queue_bytes} B is negative or too much"
        if self.largest_bytes and not LEAST_LARGEST_BYTES <= self.largest_bytes <= MOST_LARGEST_BYTES:
            least, most = LEAST_LARGEST_BYTES, MOST_LARGEST_BYTES
            yield f"largest: {self.largest_bytes} B is neither 0 (all pass) nor between {least} B and {most} B"
        if not 0 <= self.overhead_bytes <= MOST_OVERHEAD_BYTES:
            yield f"overhead: {self.overhead_bytes} B is not between 0 and {MOST_OVERHEAD_BYTES} B a packet"
        for name in ("loss", "p", "r", "h", "k", "corrupt", "duplicate", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                yield f"{name}: {value:g} is no probability, which is from 0 to 1"
        if not 0 <= self.jitter_correlation < 1:
            yield f"correlation: {self.jitter_correlation:g} is not from 0 to below 1"
        if self.jitter_distribution not in DISTRIBUTIONS:
            yield f"distribution: there is no {self.jitter_distribution!r}; there is {', '.join(DISTRIBUTIONS)}"
        if not 0 <= self.jitter_s <= MOST_DELAY_S:
            yield f"jitter: {self.jitter_s:g} s is not between 0 and {MOST_DELAY_S:g} s"
        if not 0 <= self.reorder_by_s <= MOST_DELAY_S:
            yield f"reorder_by: {self.reorder_by_s:g} s is not between 0 and {MOST_DELAY_S:g} s"
        if not (self.burst == 0 or 1 <= self.burst <= 1e9):
            yield f"burst: a burst of {self.burst:g} packets is shorter than one packet, or endless"

    def _contradictions(self) -> Iterator[str]:
        below = DISTRIBUTIONS.get(self.jitter_distribution, 0.0) * self.jitter_s
        if 0 < self.delay_s < below * (1 - 1e-9) or (self.jitter_s > 0 and self.delay_s == 0):
            yield (
                f"jitter: {self.jitter_s * 1e6:g} us, {self.jitter_distribution}, reaches {below * 1e6:g} us below"
                f" the mean, which is {self.delay_s * 1e6:g} us: packets would arrive before they were sent;"
                " raise delay, which is the mean, or take less jitter"
            )
        if self.jitter_correlation and not self.jitter_s:
            yield "correlation: it is that of the jitter, and there is none; give jitter too"
        if self.jitter_reorders and not self.jitter_s:
            yield "jitter_reorders: there is no jitter that could reorder; give jitter too"
        if self.burst and not 0 < self.loss < 1:
            yield f"burst: it needs a loss between 0 and 1 to be the bursts of, and it is {self.loss:g}; give loss too"
        elif self.burst >= 1 and self.burst < self.loss / (1 - self.loss) * (1 - 1e-9):
            yield (
                f"burst: a loss of {self.loss:g} has runs of {self.loss / (1 - self.loss):.4g} packets at least,"
                f" {self.burst:g} is shorter; give a longer burst, or less loss"
            )
        if self.p > 0:
            if self.loss or self.burst:
                yield "p: a chain says loss and burst by itself; give either p and r, or loss and burst"
            if self.r <= 0:
                yield "r: with p there must be a way back to the good state; give r above 0"
        elif self.r or self.h or self.k != 1:
            yield "p: r, h and k belong to a chain that begins with p above 0; give p too"
        if self.corrupt_survives and not self.corrupt:
            yield "corrupt_survives: there is no corruption that could survive; give corrupt too"
        if bool(self.reorder) != bool(self.reorder_by_s):
            yield (
                "reorder: one half of it is missing; give both, reorder (what share is held back) and reorder_by"
                " (how long)"
            )
        if self.reorder and self.jitter_s and not self.jitter_reorders:
            yield "reorder: jitter cannot keep an order that is broken; give jitter_reorders=true too"
        if self.reorder and self.jitter_correlation:
            yield "reorder: it cannot be had with a correlation of the jitter; leave one of them out"


@dataclass(frozen=True)
class Direction:
    """One direction of a link as the emulator sees it: in at ``ingress``, out at ``egress``, both in the plant.

    ``name`` is ``link:site``, the site being the one that the direction leads to.
    """

    name: str
    ingress: str
    egress: str
    impairment: Impairment

    @property
    def link(self) -> str:
        return self.name.partition(":")[0]

    @property
    def toward(self) -> str:
        return self.name.partition(":")[2]
