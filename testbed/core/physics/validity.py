"""Validity of the scale model: ``scale`` divides rates and payloads, but neither latency nor packets. Pure.

Propagation and bytes / rate take the same time in the lab as at full scale. This module judges the rest, for one
direction of a link and one exchange, by comparing the lab with full scale (the lab's rate and bytes times ``scale``,
everything else equal):

==================  ===================================================================  =============================
quantity            computed as                                                          source
==================  ===================================================================  =============================
packet time         wire bytes of one MTU packet x 8 / rate, against the one-way delay   IEEE 802.3 (24 bytes overhead)
slow start          rounds of RTT from 10 packets, doubling, until the pipe is full or   RFC 6928, RFC 5681
                    a step's bytes are sent
loss                window that loss allows, sqrt(3 / 2p) packets, against rate x RTT    Mathis et al., CCR 27(3), 1997
operation size      bytes of one message of a ring collective, against one packet        Patarasuk and Yuan, 2009
software cost       sequential messages x cost of each, against a step's propagation     measured (``MESSAGE_S``)
                    and bytes / rate
==================  ===================================================================  =============================

Mathis' law holds for Reno and independent losses; CUBIC recovers faster on long fat pipes, and BBR largely ignores
loss. The direction of a bias is that of the results: *too kind* means that full scale is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.core.units import format_percent

__all__ = ["BIASED", "FAILS", "HOLDS", "QUANTITIES", "Exchange", "Fiber", "Finding", "check", "summary"]

HOLDS, BIASED, FAILS = "holds", "biased", "does not hold"

EXACT: Final = 0.01
"""Largest relative error of a quantity that holds: our choice, half of what certificates allow in rate."""
TOLERABLE: Final = 0.10
"""Largest relative error of a quantity with a stated bias: our choice."""

INITIAL_WINDOW: Final = 10
"""Packets that TCP sends before the first acknowledgement (RFC 6928)."""
FRAME_BYTES: Final = 14 + 24
"""Ethernet's header, preamble, frame check and gap: the wire overhead of an IP packet."""
HEADER_BYTES: Final = 52
"""IPv4 (20) and TCP with timestamps (32) inside an MTU."""
MESSAGE_S: Final = 52e-6
"""Cost of a message in the network stacks and veths between two nodes of a lab: the upper end of the medians, 32 to
52 us, measured on two cores under kernel 6.18. It depends on the host; a certificate's baseline measures it."""

PARAMETERS: Final = 478_272
"""Parameters of the agents' default model: 4 layers, 4 heads, width 96, context 64, bytes as tokens (see their ``job``
record)."""
FLOAT32_BYTES: Final = 4

QUANTITIES: Final = (
    "propagation, bytes / rate",
    "packet time",
    "slow start",
    "loss",
    "operation size",
    "software cost",
)


@dataclass(frozen=True)
class Exchange:
    """The exchange of a step: ``gradient_bytes`` as sent in the lab, in one ring all-reduce of all ``ranks``."""

    ranks: int
    gradient_bytes: float = float(PARAMETERS * FLOAT32_BYTES)

    @property
    def crossing_bytes(self) -> float:
        """Bytes that each member of the ring sends to the next in a step: 2 (R - 1) / R x n."""
        return 2 * (self.ranks - 1) / self.ranks * self.gradient_bytes

    @property
    def message_bytes(self) -> float:
        return self.gradient_bytes / self.ranks

    @property
    def messages(self) -> int:
        """Number of sequential messages: 4 (R - 1); 12 were measured for gloo among 4 ranks (``training.py``)."""
        return 4 * (self.ranks - 1)


@dataclass(frozen=True)
class Fiber:
    """One direction of a link in the lab, or both if they are equal; ``rtt_s`` is the round trip."""

    name: str
    delay_s: float
    rtt_s: float
    rate_bps: float
    mtu: int
    loss: float


@dataclass(frozen=True)
class Finding:
    """Validity of one quantity of one fiber.

    Attributes:
        fiber: link, or ``link:site`` where its directions differ.
        quantity: one of :data:`QUANTITIES`.
        verdict: :data:`HOLDS`, :data:`BIASED` or :data:`FAILS`.
        lab, real: the quantity here and at full scale, in ``unit``.
        error: relative size of the bias (0.08 is 8 %).
        direction: "too kind", "too harsh" or "": the lab compared with full scale.
        reason: why, in a sentence; change: what to do about it, or empty.
    """

    fiber: str
    quantity: str
    verdict: str
    lab: float
    real: float
    unit: str
    error: float
    direction: str
    reason: str
    change: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.fiber}, {self.quantity}: {self.verdict}; {self.reason}" + (
            f"; {self.change}" if self.change else ""
        )


def check(fibers: Sequence[Fiber], scale: float, exchange: Exchange) -> tuple[Finding, ...]:
    """Judge every quantity of every fiber; those of the exchange only if more than one rank takes part."""
    return tuple(finding for fiber in fibers for judge in _JUDGES for finding in judge(fiber, scale, exchange))


def summary(findings: Sequence[Finding], see: str = "testbed show") -> tuple[str, ...]:
    """Return one line on the validity of the scale model, then the worst finding of each quantity that fails.

    ``more``: the command that shows all findings.
    """
    fails = _quantities(findings, FAILS)
    biased = [quantity for quantity in _quantities(findings, BIASED) if quantity not in fails]
    outcome = f"does not hold for {_listed(fails)}" if fails else "holds"
    if biased:
        outcome += f"{'; it has' if fails else ', with'} a known bias in {_listed(biased)} ({see})"
    worst = (
        max(
            (finding for finding in findings if (finding.quantity, finding.verdict) == (quantity, FAILS)),
            key=lambda finding: finding.error,
        )
        for quantity in fails
    )
    return (f"the scale model {outcome}", *map(str, worst))


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _quantities(findings: Sequence[Finding], verdict: str) -> list[str]:
    return list(dict.fromkeys(finding.quantity for finding in findings if finding.verdict == verdict))


def rounds(pipe_packets: float, packets: float) -> int:
    """Return the round trips of slow start until the window fills the pipe, or everything is sent.

    >>> rounds(10, 1e9), rounds(40, 1e9), rounds(1e9, 70)
    (0, 2, 2)
    """
    pipe_packets = min(pipe_packets, 1e300)  # of an infinite rate
    fill = math.ceil(math.log2(max(1.0, pipe_packets / INITIAL_WINDOW)) - 1e-9)
    drain = math.ceil(math.log2(packets / INITIAL_WINDOW + 1) - 1e-9) - 1
    return max(0, min(fill, drain))


def loss_window(loss: float) -> float:
    """Return the mean packets in flight of a Reno sender under a random ``loss``: sqrt(3 / 2p).

    >>> round(loss_window(1e-4), 1)
    122.5
    """
    return math.sqrt(1.5 / loss)


def _propagation(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    yield Finding(
        fiber.name, QUANTITIES[0], HOLDS, fiber.delay_s, fiber.delay_s, "s", 0.0, "",
        "latency is not scaled, and payloads are divided by the same factor as rates",
    )  # fmt: skip


def _packet_time(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    lab = (fiber.mtu + FRAME_BYTES) * 8 / fiber.rate_bps
    error = _ratio(lab - lab / scale, fiber.delay_s)
    most = scale * TOLERABLE / error if error else scale
    yield Finding(
        fiber.name, "packet time", _verdict(error), lab, lab / scale, "s", error, "too harsh" if error else "",
        f"a packet of {fiber.mtu} bytes takes {lab * 1e6:.3g} us on the wire here and {lab / scale * 1e6:.3g} us at"
        f" full scale: late by {format_percent(error)} of the one-way delay,"
        f" {format_percent(_ratio(lab - lab / scale, fiber.rtt_s))} of the RTT",
        f"set scale to {_round_down(most)} or less" if error > TOLERABLE else "",
    )  # fmt: skip


def _slow_start(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    if exchange.ranks < 2:
        return
    pipe = fiber.rate_bps * fiber.rtt_s / 8 / fiber.mtu
    packets = exchange.crossing_bytes / (fiber.mtu - HEADER_BYTES)
    lab, real = rounds(pipe, packets), rounds(pipe * scale, packets * scale)
    missing_s = (real - lab) * fiber.rtt_s
    error = _ratio(missing_s, missing_s + exchange.crossing_bytes * 8 / fiber.rate_bps)
    yield Finding(
        fiber.name, "slow start", BIASED if real > lab else HOLDS, lab, real, "rounds", error,
        "too kind" if real > lab else "",
        f"the pipe holds {_count(pipe)} packets here and {_count(pipe * scale)} at full scale:"
        f" a cold start of a connection is {missing_s * 1e3:.3g} ms too fast",
        "exclude steps after a cold start, or study reconnections at scale 1" if real > lab else "",
    )  # fmt: skip


def _loss(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    if not 0 < fiber.loss < 1:
        yield Finding(fiber.name, "loss", HOLDS, 0.0, 0.0, "share of rate", 0.0, "", "no random loss is configured")
        return
    pipe = max(fiber.rate_bps * fiber.rtt_s / 8 / fiber.mtu, 1.0)
    window = loss_window(fiber.loss)
    lab, real = min(1.0, window / pipe), min(1.0, window / (pipe * scale))
    kind = lab / real
    # Scale 1 has no bias; at any other scale, loss is flagged even if the pipe stays full.
    verdict = HOLDS if scale <= 1 else BIASED if kind - 1 <= TOLERABLE else FAILS
    yield Finding(
        fiber.name, "loss", verdict, lab, real, "share of rate", kind - 1, "too kind" if kind > 1 else "",
        f"at a loss of {fiber.loss:g} Reno keeps {window:.3g} packets in flight, while the pipe holds"
        f" {_count(pipe)} here and {_count(pipe * scale)} at full scale: goodput is {kind:.3g} times too kind",
        f"read goodput as an upper bound; {fiber.loss:g} here fills the pipe as {fiber.loss / scale**2:.2g} does there"
        if verdict == FAILS
        else "",
    )  # fmt: skip


def _operation_size(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    if exchange.ranks < 2:
        return
    segment = fiber.mtu - HEADER_BYTES
    lab, real = exchange.message_bytes, exchange.message_bytes * scale
    # The last packet of a message is not full but costs as much latency; at full scale that is negligible.
    error = _ratio(segment, lab) * (1 - 1 / scale) / 2 if scale > 1 else 0.0
    verdict = FAILS if lab < segment and scale > 1 else _verdict(error)
    yield Finding(
        fiber.name, "operation size", verdict, lab, real, "bytes", error, "too harsh" if error else "",
        f"a message of the ring is {_count(lab / segment)} packets here and {_count(real / segment)} at full scale",
        f"train {_round_up(segment / lab)} times as many parameters, or lower the scale" if verdict == FAILS else "",
    )  # fmt: skip


def _software(fiber: Fiber, scale: float, exchange: Exchange) -> Iterator[Finding]:
    if exchange.ranks < 2:
        return
    cost = exchange.messages * MESSAGE_S
    transfer = exchange.messages * fiber.delay_s + exchange.crossing_bytes * 8 / fiber.rate_bps
    error = _ratio(cost, cost + transfer)
    yield Finding(
        fiber.name, "software cost", _verdict(error), cost, cost, "s", error, "too harsh",
        f"{exchange.messages} sequential messages cost {cost * 1e3:.3g} ms of software here, against"
        f" {transfer * 1e3:.3g} ms of fiber",
        "train more parameters, or use fewer ranks" if error > TOLERABLE else "",
    )  # fmt: skip


_JUDGES: Final[tuple[Callable[[Fiber, float, Exchange], Iterator[Finding]], ...]] = (
    _propagation, _packet_time, _slow_start, _loss, _operation_size, _software,
)  # fmt: skip


def _verdict(error: float) -> str:
    return HOLDS if error <= EXACT else BIASED if error <= TOLERABLE else FAILS


def _ratio(part: float, whole: float) -> float:
    """Return ``part`` / ``whole``; 0 without a part, 1 without a whole (a fiber without delay is all packet time)."""
    return part / whole if whole else (1.0 if part else 0.0)


def _count(packets: float) -> str:
    return f"{packets:.0f}" if packets >= 100 else f"{packets:.2g}"


def _round_down(value: float) -> str:
    """Round down to one leading digit, as a user would set it."""
    if value < 1:
        return "1"
    power = 10.0 ** math.floor(math.log10(value))
    return f"{math.floor(value / power) * power:g}"


def _round_up(value: float) -> int:
    return math.ceil(value)
