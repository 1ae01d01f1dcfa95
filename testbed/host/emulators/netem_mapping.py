"""Map an impairment to netem's and tbf's parameters, and refuse what they do not support. Pure; see docs/netem.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from testbed.core.physics.distribution import offsets_s
from testbed.core.physics.impairment import GilbertElliott, Impairment
from testbed.core.physics.one_qdisc import random_loss, with_duplicates
from testbed.errors import LabError
from testbed.host.emulators import tc

__all__ = ["PACKETS_UNDER_WAY", "qdiscs_of"]

HEADER_BYTES: Final = 14
BURST_S: Final = 250e-6
"""tbf's burst, as time at the rate: how late a timer may be without a loss of throughput (docs/netem.md)."""

PACKETS_UNDER_WAY: Final = 1_000_000
"""Per direction; bounds memory only."""

UNLIMITED_RATE: Final = 2**41
"""Bytes per second that mean "no limit": with a tbf always attached, its rate can change without losing packets."""

UNLIMITED_QUEUE_BYTES: Final = 2**30
LEAST_PROBABILITY: Final = 1.5 * tc.STEP
"""A probability that rounds to one step could be off by half, or be zero."""


def qdiscs_of(direction: str, impairment: Impairment, mtu: int, seed: int | None = None) -> tuple[tc.Netem, tc.Tbf]:
    """Return the two qdiscs of an egress with this MTU. ``seed`` is used by kernels that support one.

    Raises LabError, naming the direction and every value, for impossible values and for those netem does not support.
    """
    if wrong := list(impairment.findings()) or list(_lacking(impairment)):
        raise LabError("; ".join(f"{direction}: {what}" for what in wrong))
    loss, duplicate = with_duplicates(random_loss(impairment), impairment.duplicate)
    assert duplicate is not None
    netem = tc.Netem(
        delay_ns=round(impairment.delay_s * 1e9),
        limit=PACKETS_UNDER_WAY,
        loss=loss,
        chain=_chain(impairment),
        duplicate=duplicate,
        corrupt=impairment.corrupt if impairment.corrupt_survives else 0.0,
        offsets_ns=tuple(round(offset * 1e9) for offset in offsets_s(impairment)),
        in_order=impairment.keeps_order,
        seed=seed,
    )
    rate = min(round(impairment.rate_bps / 8), UNLIMITED_RATE) if impairment.rate_bps else UNLIMITED_RATE
    frame, overhead = mtu + HEADER_BYTES, impairment.overhead_bytes
    # tbf's queue limit counts frame bytes, ours wire bytes: the conversion is exact for full frames.
    queue = round(impairment.queue_bytes * frame / (frame + overhead)) or UNLIMITED_QUEUE_BYTES
    burst = min(frame + overhead + round(rate * BURST_S), UNLIMITED_QUEUE_BYTES)
    return netem, tc.Tbf(rate, min(queue, UNLIMITED_QUEUE_BYTES), burst, overhead)


def _lacking(impairment: Impairment) -> Iterator[str]:
    """Yield one sentence per unsupported value; each begins with the name of the value as users write it."""
    chances = {"p": "p", "r": "r", "duplicate": "duplicate", "corrupt": "corrupt", "loss": "loss"}
    for field, name in chances.items():
        if 0 < getattr(impairment, field) < LEAST_PROBABILITY:
            yield _unsupported(name, f"a probability below {LEAST_PROBABILITY:.1g}")
    if impairment.jitter_correlation:
        # netem indexes its table by the remainder of a 32-bit number, of which only the upper bits are correlated.
        yield _unsupported("correlation", "correlation of jitter")
    if impairment.chain and impairment.duplicate:
        yield _unsupported("duplicate", "duplication together with burst loss: the clone would be a step of the chain")
    elif with_duplicates(random_loss(impairment), impairment.duplicate)[1] is None:
        yield _unsupported("duplicate", f"duplication of {impairment.duplicate:g} of the packets that this loss leaves")
    try:
        most_s = max(map(abs, offsets_s(impairment)), default=0.0)
    except ValueError as error:
        yield _unsupported("reorder", f"this share: {str(error).partition(': ')[2]}")
        return
    if most_s * 1e9 > tc.MOST_OFFSET_NS:
        name = "reorder_by" if impairment.reorder else "jitter"
        yield _unsupported(name, f"delays more than {tc.MOST_OFFSET_NS / 1e9:.3g} s from their mean")


def _unsupported(name: str, what: str) -> str:
    return f"{name}: netem does not support {what}; use --emulator fiberd"


def _chain(impairment: Impairment) -> GilbertElliott | None:
    """Return the chain with the frame check included: a packet must pass the chain, in either state, and the check."""
    chain, clean = impairment.chain, 1.0 - _caught(impairment)
    return GilbertElliott(chain.p, chain.r, chain.h * clean, chain.k * clean) if chain else None


def _caught(impairment: Impairment) -> float:
    return 0.0 if impairment.corrupt_survives else impairment.corrupt
