"""What the kernel is told for an impairment, and what it cannot be told. Pure; docs/netem.md has the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from testbed.core.physics.distribution import offsets_s
from testbed.core.physics.impairment import GilbertElliott, Impairment
from testbed.errors import LabError
from testbed.host.emulators import tc

__all__ = ["PACKETS_UNDER_WAY", "qdiscs_of"]

HEADER_BYTES: Final = 14
BURST_S: Final = 250e-6
"""What tbf may send at once, as time at the rate: the lateness of a timer that costs no throughput (docs/netem.md)."""

PACKETS_UNDER_WAY: Final = 1_000_000
"""Per direction; only there so that memory is bounded."""

UNLIMITED_RATE: Final = 2**41
"""Bytes per second, for "no rate": a tbf that is always there can be changed without losing what is in it."""

UNLIMITED_QUEUE_BYTES: Final = 2**30
LEAST_PROBABILITY: Final = 1.5 * tc.STEP
"""What rounds to one step may be wrong by half, or be never."""


def qdiscs_of(direction: str, impairment: Impairment, mtu: int, seed: int | None = None) -> tuple[tc.Netem, tc.Tbf]:
    """The two qdiscs of an egress with that MTU. ``seed`` is of the chance, where the kernel takes one.

    Raises LabError, naming the direction and every value, for what cannot be, and for what netem cannot do.
    """
    if wrong := list(impairment.findings()) or list(_lacking(impairment)):
        raise LabError("; ".join(f"{direction}: {what}" for what in wrong))
    loss, duplicate = _with_duplicates(_random_loss(impairment), impairment.duplicate)
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
    # tbf counts frames where we count what they are on the wire: exact for full frames.
    queue = round(impairment.queue_bytes * frame / (frame + overhead)) or UNLIMITED_QUEUE_BYTES
    burst = min(frame + overhead + round(rate * BURST_S), UNLIMITED_QUEUE_BYTES)
    return netem, tc.Tbf(rate, min(queue, UNLIMITED_QUEUE_BYTES), burst, overhead)


def _lacking(impairment: Impairment) -> Iterator[str]:
    """What is possible, but not here: each in a sentence that begins with the name of the value as users write it."""
    chances = {"p": "p", "r": "r", "duplicate": "duplicate", "corrupt": "corrupt", "loss": "loss"}
    for field, name in chances.items():
        if 0 < getattr(impairment, field) < LEAST_PROBABILITY:
            yield _has_no(name, f"probability below {LEAST_PROBABILITY:.1g}")
    if impairment.jitter_correlation:
        # It draws from a table by the remainder of a 32-bit number, and only the upper bits of that are correlated.
        yield _has_no("correlation", "correlation of jitter that has an effect")
    if impairment.chain and impairment.duplicate:
        yield _has_no("duplicate", "duplication beside loss in bursts: the clone would be a step of the chain")
    elif _with_duplicates(_random_loss(impairment), impairment.duplicate)[1] is None:
        yield _has_no("duplicate", f"way to duplicate {impairment.duplicate:g} of what a loss of this size leaves")
    try:
        most_s = max(map(abs, offsets_s(impairment)), default=0.0)
    except ValueError as error:
        yield _has_no("reorder", f"share like that: {str(error).partition(': ')[2]}")
        return
    if most_s * 1e9 > tc.MOST_OFFSET_NS:
        name = "reorder_by" if impairment.reorder else "jitter"
        yield _has_no(name, f"delay that differs by more than {tc.MOST_OFFSET_NS / 1e9:.3g} s from its mean")


def _has_no(name: str, what: str) -> str:
    return f"{name}: the emulator netem has no {what}; --emulator fiberd has it"


def _random_loss(impairment: Impairment) -> float:
    """A frame that is corrupted is lost: the two together, where there is no chain."""
    if impairment.chain:
        return 0.0
    caught = _caught(impairment)
    return 1.0 - (1.0 - impairment.loss) * (1.0 - caught) if caught else impairment.loss


def _chain(impairment: Impairment) -> GilbertElliott | None:
    """As :func:`_random_loss`: a packet must pass the chain, in either state, and then the frame check."""
    chain, clean = impairment.chain, 1.0 - _caught(impairment)
    return GilbertElliott(chain.p, chain.r, chain.h * clean, chain.k * clean) if chain else None


def _caught(impairment: Impairment) -> float:
    return 0.0 if impairment.corrupt_survives else impairment.corrupt


def _with_duplicates(loss: float, duplicate: float) -> tuple[float, float | None]:
    """What to tell netem, so that ``loss`` of the packets do not come and ``duplicate`` of the others come twice.

    With its own L and D a packet does not come if it is lost and not cloned, (1 - D) L; it comes twice if it is cloned
    and neither it nor its clone, which passes netem once more, is lost, D (1 - L)^2 (netem_enqueue; one that is cloned
    and lost comes once). The second of the pair is None where no D gives so many.
    """
    if not duplicate or not loss:
        return loss, duplicate
    if loss >= 1:
        return loss, 0.0  # nothing comes, nothing comes twice

    def twice(own: float) -> float:
        return own * (1.0 - loss / (1.0 - own)) ** 2

    low, high = 0.0, 1.0 - loss
    for _ in range(100):  # its maximum: it rises, then falls
        third = (high - low) / 3
        low, high = (low + third, high) if twice(low + third) < twice(high - third) else (low, high - third)
    if twice(low) < (1.0 - loss) * duplicate:
        return loss, None
    low, high = 0.0, low
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if twice(middle) < (1.0 - loss) * duplicate else (low, middle)
    return loss / (1.0 - low), low
